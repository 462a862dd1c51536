"""Environments with goals, in the contract of Gymnasium-Robotics.

Their observations are dicts with the fields `achieved_goal` and `desired_goal`, and they have a
method `compute_reward(achieved_goal, desired_goal, info)` that takes many goals at once. A replay
that relabels goals calls it in the learner's process, where no environment exists: on an object of
the same class that was not constructed, and has the plain attributes of a real one. The process
that builds environments tries this out first, see `envs/goals.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from asyncrl.core.env import BatchEnv, EnvDescription, EnvSpec
from asyncrl.core.errors import EnvironmentFault
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.settings import load_object
from asyncrl.core.types import Array

ACHIEVED_GOAL = "achieved_goal"
DESIRED_GOAL = "desired_goal"

ComputeReward = Callable[[Array, Array, Mapping[str, Any]], Any]

GoalReward = Mapping[str, Any]
"""Where an environment's `compute_reward` is, as plain values, which JSON can represent: `path` of
its class, `values` and `arrays` of the attributes, and `problem`, a sentence if it cannot be called
without an environment."""


@runtime_checkable
class RelabelsGoals(Protocol):
    """A replay's config that needs to know the goals of the environment."""

    def for_goals(self, spec: EnvSpec, goal_reward: GoalReward | None) -> ReplayBufferConfig:
        """Return what builds the replay; raise `ConfigError` if the environment has no goals."""
        ...


@runtime_checkable
class ComputesRewards(Protocol):
    """A replay that computes rewards as the environments do."""

    def compute_as(self, goal_reward: GoalReward | None) -> None:
        """Compute them as these environments from now on; raise `ConfigError` if it cannot."""
        ...


def with_goals(config: ReplayBufferConfig, env: BatchEnv | EnvDescription) -> ReplayBufferConfig:
    """Return a replay config that knows the goals of the environment, if it needs them."""
    if not isinstance(config, RelabelsGoals):
        return config
    return config.for_goals(env.spec, getattr(env, "goal_reward", None))


def without_env(goal_reward: GoalReward) -> ComputeReward:
    """Return the function `compute_reward` of an environment that is not constructed."""
    cls: Any = load_object(goal_reward["path"])
    bare = object.__new__(cls)
    vars(bare).update(goal_reward["values"])
    for name, (dtype, items) in goal_reward["arrays"].items():
        vars(bare)[name] = np.array(items, dtype)
    return cast(ComputeReward, bare.compute_reward)


def rewards_of(compute: ComputeReward, achieved: Array, desired: Array) -> Array:
    """Return the rewards (n,) of n pairs of goals; raise `EnvironmentFault` for anything else."""
    rewards = np.asarray(compute(achieved, desired, {}), np.float32)
    if rewards.shape != (len(achieved),):
        raise EnvironmentFault(
            f"compute_reward returned {rewards!r:.80} for {len(achieved)} pairs of goals; it must "
            "compute many at once, and return one reward for each"
        )
    return rewards
