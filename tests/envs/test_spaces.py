"""Spaces become specs that hold what is really sent, and actions come back in their terms."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.env import BoxSpec, PackedSpec
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
    ("space", "shape", "dtype", "low", "high"),
    [
        (Box(0, 100, (2,), np.float64), (2,), "float32", [0, 0], [100, 100]),
        (Box(0, 100, (2,), np.float16), (2,), "float16", [0, 0], [100, 100]),
        (Box(0, 100, (1,), np.uint8), (1,), "uint8", [0], [100]),
        (Box(-math.inf, 0.0, (1,), np.float64), (1,), "float32", [-math.inf], [0]),
        (Box(-1e300, 1e300, (1,), np.float64), (1,), "float32", [-math.inf], [math.inf]),
        (Discrete(3, start=-1), (), "int64", -1, 1),
        (MultiDiscrete([[2, 3]], start=[[0, -1]]), (1, 2), "int64", [[0, -1]], [[1, 1]]),
        (MultiBinary(2), (2,), "int8", [0, 0], [1, 1]),
    ],
)
def test_observations_are_declared_as_they_are_sent(
    space: gym.Space[Any], shape: tuple[int, ...], dtype: str, low: Any, high: Any
) -> None:
    spec = observation_of(space)
    assert (spec.shape, spec.dtype) == (shape, dtype)
    assert spec.low.dtype == spec.high.dtype == dtype
    assert (spec.low.tolist(), spec.high.tolist()) == (low, high)
    assert spec.categorical == isinstance(space, Discrete | MultiDiscrete)
    if isinstance(space, MultiDiscrete | MultiBinary):
        action = spec_from_spaces(ANY, space).action
        assert isinstance(action, BoxSpec)
        assert action.categorical
        assert (action.low.tolist(), action.high.tolist()) == (low, high)


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


@pytest.mark.parametrize("space", [Text(4), Sequence(ANY), None])
def test_other_observation_spaces_are_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"observation space .*TransformObservation"):
        spec_from_spaces(space, Discrete(2))
    if space is not None:
        with pytest.raises(ConfigError, match=r"the field 'a/1' is not .*FilterObservation"):
            spec_from_spaces(Dict({"a": Tuple((ANY, space))}), Discrete(2))


@pytest.mark.parametrize("space", [Dict({"a": ANY}), None])
def test_other_action_spaces_are_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"action space .*ActionWrapper"):
        spec_from_spaces(ANY, space)


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
                assert field.flags.aligned or packed_rows.flags.f_contiguous
                np.testing.assert_array_equal(field[i], np.asarray(leaf, box.dtype))


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (Discrete(3), np.array([0, 2], np.uint8), np.array([0, 2], np.int64)),
        (Discrete(3, start=10), np.array([0, 2]), np.array([10, 12], np.int64)),
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
