"""Environments with goals are found, and their rewards are tried out before a run begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

from asyncrl.core.goals import without_env
from asyncrl.core.types import Array
from asyncrl.envs.goals import goal_reward_of
from tests.support.bit_flip import BitFlip


class Tolerant(BitFlip):
    """Its reward depends on attributes of each kind."""

    def __init__(self) -> None:
        super().__init__(6)
        self.weights = np.arange(6.0)
        self.scale = np.float32(0.5)
        self.name, self.nothing = "tolerant", None

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        obs, _, *others = super().step(action)
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
        return (obs, float(reward), *others)

    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        assert (self.name, self.nothing) == ("tolerant", None)
        return -((achieved != desired) * self.weights).sum(axis=-1) * self.scale


class OnePairOnly(BitFlip):
    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        return float(np.array_equal(achieved, desired)) - 1


class Depends(Tolerant):
    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        constructed = "observation_space" in vars(self)
        return super().compute_reward(achieved, desired, info) - constructed


class ReadsInfo(BitFlip):
    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        return super().compute_reward(achieved, desired, info) + 0 * info["is_success"]


class OfItsTask(gym.Env[Any, Any]):
    """Its method is an attribute of the instance, and another object's."""

    def __init__(self) -> None:
        self.task = Tolerant()
        self.observation_space = self.task.observation_space
        self.action_space = self.task.action_space
        self.reset, self.step = self.task.reset, self.task.step  # type: ignore[method-assign]
        self.compute_reward = self.task.compute_reward


@pytest.mark.parametrize("make", [Tolerant, OfItsTask])
def test_reward_is_computed_without_an_environment(make: Callable[[], Any]) -> None:
    env = make()
    found = goal_reward_of(TimeLimit(env, 3))
    assert found is not None
    assert found["problem"] == ""
    pairs = np.random.default_rng(0).integers(0, 2, (2, 20, 6)).astype(np.int8)
    here, there = without_env(found)(*pairs, {}), env.compute_reward(*pairs, {})
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (OnePairOnly, "for 16 pairs of goals; it must compute many at once"),
        (Depends, "it depends on more than the environment's numbers, texts and arrays"),
        (ReadsInfo, "KeyError: 'is_success'"),
        (
            lambda: TransformReward(BitFlip(), lambda reward: reward + 7),
            "step gave the reward 6, and compute_reward -1",
        ),
    ],
)
def test_reward_that_cannot_be_computed_elsewhere_is_explained(
    make: Callable[[], gym.Env[Any, Any]], problem: str
) -> None:
    found = goal_reward_of(make())
    assert found is not None
    assert problem in found["problem"]
