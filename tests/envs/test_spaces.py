"""Spaces become specs that hold what is really sent, and actions come back in their terms."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.env import BoxSpec, DiscreteSpec
from asyncrl.envs._spaces import ActionEncoder, spec_from_spaces
from asyncrl.errors import ConfigError

ANY = Box(-1, 1, (1,), np.float32)


def observation_of(space: gym.Space[Any]) -> BoxSpec:
    return spec_from_spaces(space, Discrete(2)).observation


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
@settings(max_examples=200, deadline=None)
def test_actions_on_rounded_bounds_are_accepted_by_the_environment(a: float, b: float) -> None:
    space = Box(min(a, b), max(a, b), (1,), np.float64)
    if np.float32(min(a, b)) >= np.float32(max(a, b)):
        return  # the space is narrower than float32 can tell
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
def test_discrete_action_counts_from_0(start: int) -> None:
    assert spec_from_spaces(ANY, Discrete(4, start=start)).action == DiscreteSpec(4)


@pytest.mark.parametrize(
    "space", [Dict({"a": ANY}), MultiBinary(3), Text(4), MultiDiscrete([2, 3]), None]
)
def test_other_spaces_are_refused_with_a_way_out(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"observation space .*gymnasium\.wrappers\.Flatten"):
        spec_from_spaces(space, Discrete(2))
    with pytest.raises(ConfigError, match=r"action space .*ActionWrapper"):
        spec_from_spaces(ANY, space)


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
