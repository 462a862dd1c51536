"""Spaces become specs that hold what is really sent, and actions come back in their terms."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.env import BoxSpec, DiscreteSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.envs.spaces import ActionEncoder, Parts, spec_from_spaces
from tests.envs.strategies import nested_spaces
from tests.support.scale import examples

ANY = Box(-1, 1, (1,), np.float32)


def observation_of(space: gym.Space[Any]) -> BoxSpec:
    spec = spec_from_spaces(space, Discrete(2)).observation
    assert isinstance(spec, BoxSpec)
    return spec


def packed(space: gym.Space[Any]) -> PackedSpec:
    spec = spec_from_spaces(space, Discrete(2)).observation
    assert isinstance(spec, PackedSpec)
    return spec


@pytest.mark.parametrize(
    ("dtype", "declared"),
    [
        (np.float64, "float32"),
        (np.float32, "float32"),
        (np.float16, "float16"),
        (np.uint8, "uint8"),
        (np.int64, "int64"),
    ],
)
def test_only_wide_floats_are_declared_narrower(dtype: Any, declared: str) -> None:
    spec = observation_of(Box(0, 100, (2, 3), dtype))
    assert (spec.shape, spec.dtype) == ((2, 3), declared)
    assert spec.low.dtype == spec.high.dtype == declared
    assert (spec.low == 0).all()
    assert (spec.high == 100).all()


def test_bounds_that_are_infinite_stay_so() -> None:
    spec = observation_of(Box(np.array([-np.inf, 0]), np.array([0, np.inf]), dtype=np.float64))
    assert spec.low.tolist() == [-math.inf, 0]
    assert spec.high.tolist() == [0, math.inf]


def test_bounds_beyond_what_can_be_declared_are_none() -> None:
    spec = observation_of(Box(-1e300, 1e300, (1,), np.float64))
    assert spec.low.tolist() == [-math.inf]
    assert spec.high.tolist() == [math.inf]


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
@settings(max_examples=examples(200), deadline=None)
def test_actions_on_rounded_bounds_are_accepted_by_the_environment(a: float, b: float) -> None:
    space = Box(min(a, b), max(a, b), (1,), np.float64)
    if np.float32(min(a, b)) >= np.float32(max(a, b)):
        return  # float32 cannot resolve a space this narrow
    spec = spec_from_spaces(ANY, space).action
    assert isinstance(spec, BoxSpec)
    encode = ActionEncoder(space, 1)
    for bound in (spec.low, spec.high):
        assert space.contains(encode(bound[None])[0])


@pytest.mark.parametrize(("n", "start"), [(6, 0), (3, -1)])
def test_discrete_observation_is_one_number_between_bounds(n: int, start: int) -> None:
    spec = observation_of(Discrete(n, start=start))
    assert (spec.shape, spec.dtype) == ((), "int64")
    assert (int(spec.low), int(spec.high)) == (start, start + n - 1)


@pytest.mark.parametrize("start", [0, 5])
def test_discrete_action_keeps_its_start(start: int) -> None:
    assert spec_from_spaces(ANY, Discrete(4, start=start)).action == DiscreteSpec(4, start)


def test_multi_discrete_observation_is_as_many_choices() -> None:
    space = MultiDiscrete([[2, 3], [4, 1]], start=[[0, -1], [5, 0]], dtype=np.int32)
    spec = observation_of(space)
    assert (spec.shape, spec.dtype, spec.categorical) == ((2, 2), "int64", True)
    assert spec.low.tolist() == [[0, -1], [5, 0]]
    assert spec.high.tolist() == [[1, 1], [8, 0]]


def test_multi_binary_observation_is_0_or_1() -> None:
    spec = observation_of(MultiBinary((2, 3)))
    assert (spec.shape, spec.dtype, spec.categorical) == ((2, 3), "int8", False)
    assert not spec.low.any()
    assert spec.high.all()


def test_fields_are_named_by_their_way() -> None:
    space = Dict({"b": Tuple((ANY, Dict({"x": Discrete(2)}))), "a": Box(0, 255, (3,), np.uint8)})
    spec = packed(space)
    assert [name for name, _ in spec.fields] == ["a", "b/0", "b/1/x"]
    assert [box.dtype for _, box in spec.fields] == ["uint8", "float32", "int64"]
    assert spec.offsets == (0, 4, 8)
    assert (spec.shape, spec.dtype) == ((16,), "uint8")


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (Dict({"a/b": ANY, "a": Dict({"b": ANY})}), "'a/b', 'a/b'"),
        (Dict({"a": Tuple(())}), "none"),
        (Dict({}), "none"),
    ],
)
def test_fields_must_have_different_names(space: gym.Space[Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        packed(space)


@pytest.mark.parametrize(
    "space", [Text(4), Graph(ANY, None), Sequence(ANY), OneOf([ANY, Discrete(2)]), None]
)
def test_other_observation_spaces_are_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"observation space .*TransformObservation"):
        spec_from_spaces(space, Discrete(2))
    if space is not None:
        with pytest.raises(ConfigError, match=r"the field 'a/1' is not .*FilterObservation"):
            spec_from_spaces(Dict({"a": Tuple((ANY, space))}), Discrete(2))


@pytest.mark.parametrize("space", [Dict({"a": ANY}), Text(4), Tuple((ANY, ANY)), None])
def test_other_action_spaces_are_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"action space .*ActionWrapper"):
        spec_from_spaces(ANY, space)


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (MultiDiscrete([2, 3]), [0, 0], [1, 2]),
        (MultiDiscrete([2, 3], start=[5, -1]), [5, -1], [6, 1]),
        (MultiBinary(3), [0, 0, 0], [1, 1, 1]),
    ],
)
def test_several_choices_are_defined_by_their_bounds(
    space: Any, low: list[int], high: list[int]
) -> None:
    action = spec_from_spaces(ANY, space).action
    assert isinstance(action, BoxSpec)
    assert action.categorical
    assert (action.low.tolist(), action.high.tolist()) == (low, high)
    encoded = ActionEncoder(space, 2)(np.stack([action.low, action.high]))
    assert all(space.contains(each) for each in encoded), "they go to the environment as they are"


def leaves(observation: Any) -> list[Any]:
    """Return the arrays in an observation, in the order of their names."""
    if isinstance(observation, dict):
        return [leaf for key in sorted(observation) for leaf in leaves(observation[key])]
    if isinstance(observation, tuple):
        return [leaf for member in observation for leaf in leaves(member)]
    return [observation]


@given(nested_spaces(), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=examples(200), deadline=None)
def test_packed_observations_unpack_to_exactly_what_was_there(
    space: gym.Space[Any], count: int, seed: int
) -> None:
    space.seed(seed)
    observations = [space.sample() for _ in range(count)]
    spec = packed(space)
    parts = Parts(space)(observations)
    columns = {
        name: np.array(part, box.dtype)
        for (name, box), part in zip(spec.fields, parts, strict=True)
    }
    rows = spec.pack(columns)
    assert (rows.shape, rows.dtype) == ((count, *spec.shape), spec.dtype)
    assert spec.row_bytes % 8 == 0
    for packed_rows in (rows, np.stack([rows, rows])[1], rows[::-1][::-1], np.asfortranarray(rows)):
        fields = [*spec.unpack(packed_rows).values()]
        for i, observation in enumerate(observations):
            for field, leaf, (_, box) in zip(fields, leaves(observation), spec.fields, strict=True):
                assert field.dtype == box.dtype
                np.testing.assert_array_equal(field[i], np.asarray(leaf, box.dtype))


@given(nested_spaces())
@settings(max_examples=examples(100), deadline=None)
def test_fields_are_aligned_views(space: gym.Space[Any]) -> None:
    spec = packed(space)
    rows = np.zeros((3, *spec.shape), np.uint8)
    ends = 0
    for (_, box), start, view in zip(
        spec.fields, spec.offsets, spec.unpack(rows).values(), strict=True
    ):
        assert start >= ends
        ends = start + box.nbytes
        assert view.size == 0 or np.shares_memory(view, rows)
        assert view.flags.aligned
        view[...] = 1
    assert ends <= spec.row_bytes < ends + 8


def test_arrays_of_another_shape_or_dtype_are_not_packed() -> None:
    spec = packed(Dict({"a": Box(0, 1, (2,), np.float32), "b": Discrete(3)}))
    right = {"a": np.zeros((4, 2), np.float32), "b": np.zeros(4, np.int64)}
    assert spec.pack(right).shape == (4, *spec.shape)
    with pytest.raises(ValueError, match=r"b: shape \(1,\), expected \(4,\)"):
        spec.pack(right | {"b": np.zeros(1, np.int64)})
    with pytest.raises(TypeError, match="Cannot cast"):
        spec.pack(right | {"a": np.zeros((4, 2))})


def test_parts_are_taken_apart_by_key_whatever_the_order() -> None:
    space = Dict({"a": Discrete(9), "b": Tuple((Discrete(9), Discrete(9)))})
    taken = Parts(space)([{"a": 1, "b": (2, 3)}, {"b": [5, 6], "a": 4}])
    assert taken == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        ({"a": 1}, r"it must be a dict with the keys \['a', 'b'\], got the keys \['a'\]"),
        ({"a": 1, "b": (2, 3), "c": 4}, r"got the keys \['a', 'b', 'c'\]"),
        ([1, 2], "it must be a dict .* got a list of 2"),
        (7, "it must be a dict .* got a int"),
        ({"a": 1, "b": (2,)}, "its field 'b' must be a tuple of 2, got a tuple of 1"),
        ({"a": 1, "b": 5}, "its field 'b' must be a tuple of 2, got a int"),
    ],
)
def test_observations_built_another_way_are_distinguished(observation: Any, said: str) -> None:
    parts = Parts(Dict({"a": Discrete(9), "b": Tuple((Discrete(9), Discrete(9)))}))
    assert parts.misfit({"a": 1, "b": (2, 3)}) is None
    with pytest.raises((TypeError, LookupError)):
        parts([{"a": 1, "b": (2, 3)}, observation])
    assert re.search(said, str(parts.misfit(observation)))


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (Discrete(3), np.array([0, 2], np.uint8), np.array([0, 2], np.int64)),
        (Discrete(3, start=10), np.array([0, 2]), np.array([10, 12], np.int64)),
        (Discrete(3, start=-1), np.array([0, 2], np.uint8), np.array([-1, 1], np.int64)),
        (Box(0, 9, (1,), np.uint8), np.array([[3], [9]]), np.array([[3], [9]], np.uint8)),
        (Box(-1, 1, (1,), np.float64), np.array([[0], [1]]), np.array([[0.0], [1.0]])),
        (Box(-1, 1, (), np.float32), np.array([0.5, 1]), np.array([0.5, 1], np.float32)),
    ],
)
def test_actions_come_out_as_the_space_wants_them(
    space: gym.Space[Any], action: np.ndarray, expected: np.ndarray
) -> None:
    encoded = ActionEncoder(space, 2)(action)
    assert encoded.dtype == expected.dtype
    np.testing.assert_array_equal(encoded, expected)
    assert not np.shares_memory(encoded, action)


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (Discrete(3), np.zeros(2), r"shape \(2,\) and dtype float64 .*shape \(2,\), integers"),
        (Discrete(3), np.zeros((2, 1), int), r"shape \(2, 1\)"),
        (Discrete(3), np.zeros(3, int), r"shape \(3,\)"),
        (Box(0, 9, (1,), np.uint8), np.zeros((2, 1)), "dtype float64 .* integers"),
        (ANY, np.zeros(2, np.float32), r"shape \(2,\) .*shape \(2, 1\), float32"),
        (ANY, np.zeros((2, 1), complex), "complex128"),
    ],
)
def test_actions_that_do_not_fit_are_refused(
    space: gym.Space[Any], action: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ActionEncoder(space, 2)(action)
