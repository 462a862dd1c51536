"""Random actions are of the space, and of all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.core.env import BoxSpec, DiscreteSpec
from asyncrl.envs.spaces import random_actions

INF = np.inf


def box(low: list[Any], high: list[Any], dtype: str, *, categorical: bool = False) -> BoxSpec:
    return BoxSpec(
        (len(low),), dtype, np.array(low, dtype), np.array(high, dtype), categorical=categorical
    )


def drawn(action: BoxSpec | DiscreteSpec) -> np.ndarray[Any, Any]:
    actions = random_actions(action, (100, 8), np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((100, 8, *action.shape), action.dtype)
    assert np.array_equal(actions, random_actions(action, (100, 8), np.random.default_rng(0)))
    return actions


@pytest.mark.parametrize(
    ("action", "first", "second"),
    [
        (box([0, 0], [1, 1], "int8", categorical=True), {0, 1}, {0, 1}),  # MultiBinary
        (box([0, 5], [2, 6], "int64", categorical=True), {0, 1, 2}, {5, 6}),  # MultiDiscrete
        (box([-2, 253], [-1, 255], "int32"), {-2, -1}, {253, 254, 255}),  # a Box of integers
    ],
)
def test_each_choice_of_several_is_drawn(
    action: BoxSpec, first: set[int], second: set[int]
) -> None:
    actions = drawn(action)
    assert set(actions[..., 0].flat) == first
    assert set(actions[..., 1].flat) == second


@pytest.mark.parametrize(
    ("low", "high", "least", "largest"),
    [(-2.0, 2.0, -2.0, 2.0), (-INF, INF, -1.0, 1.0), (3.0, INF, 3.0, 4.0)],
)
def test_quantities_fill_their_bounds_or_what_is_near_0(
    low: float, high: float, least: float, largest: float
) -> None:
    actions = drawn(box([low], [high], "float32"))
    near = 0.05 * (largest - least)
    assert least <= actions.min() <= least + near
    assert largest - near <= actions.max() <= largest
