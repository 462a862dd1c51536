"""Finds the goals of an environment, and tries out its `compute_reward`.

Steps the environment for a moment; it must be reset afterwards.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict

from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError
from asyncrl.core.goals import ACHIEVED_GOAL, DESIRED_GOAL, GoalReward, rewards_of, without_env
from asyncrl.core.types import Array

_STEPS = 8


def goal_reward_of(env: gym.Env[Any, Any]) -> GoalReward | None:
    """Return where the environment's `compute_reward` is; None if it has no goals."""
    space = env.observation_space
    if not isinstance(space, Dict) or not {ACHIEVED_GOAL, DESIRED_GOAL} <= {*space}:
        return None
    owner = _owner(env)
    if owner is None:
        return None
    path = f"{type(owner).__module__}:{type(owner).__qualname__}"
    found = {"path": path, **_attributes_of(owner), "problem": ""}
    try:
        _try_out(env, owner, found)
    except Exception as error:  # the user's code may raise anything
        found["problem"] = f"{type(error).__name__}: {error}"
    return found


def _owner(env: Any) -> Any:  # noqa: ANN401  # an environment or a wrapper
    """Return whose method the outermost layer of an environment with one has, or else None.

    Of an attribute of the instance, such as `self.compute_reward = self.task.compute_reward`, that
    is the object it is bound to.
    """
    while not hasattr(type(env), "compute_reward"):
        if "compute_reward" in vars(env):
            return getattr(env.compute_reward, "__self__", env)
        if not isinstance(env, gym.Wrapper):
            return None
        env = env.env
    return env


def _try_out(env: gym.Env[Any, Any], owner: Any, found: GoalReward) -> None:  # noqa: ANN401
    achieved, desired = _goals(env, owner)
    # Half of the pairs are of a goal with itself, so that successes are among them.
    achieved, desired = np.concatenate([achieved, achieved]), np.concatenate([desired, achieved])
    pairs = zip(achieved, desired, strict=True)
    real = np.array([_one_reward(owner, a, d, {}) for a, d in pairs], np.float32)
    here = rewards_of(without_env(found), achieved, desired)
    if not np.allclose(here, real, rtol=1e-4, atol=1e-6):
        raise ConfigError(
            f"it gives {shown(here)} without an environment, and {shown(real)} with one; it "
            "depends on more than the environment's numbers, texts and arrays"
        )


def _goals(env: gym.Env[Any, Any], owner: Any) -> tuple[Array, Array]:  # noqa: ANN401
    """Return the goals of some random steps; check their rewards."""
    env.action_space.seed(0)
    env.reset(seed=0)
    goals = []
    for _ in range(_STEPS):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        goals.append((np.array(obs[ACHIEVED_GOAL]), np.array(obs[DESIRED_GOAL])))
        computed = _one_reward(owner, *goals[-1], info)
        if not np.isclose(computed, float(reward), rtol=1e-4, atol=1e-6):
            raise ConfigError(f"step gave the reward {reward:g}, and compute_reward {computed:g}")
        if terminated or truncated:
            env.reset()
    achieved, desired = zip(*goals, strict=True)
    return np.stack(achieved), np.stack(desired)


def _one_reward(owner: Any, achieved: Array, desired: Array, info: Any) -> float:  # noqa: ANN401
    """Return the reward of one pair of goals, which may come as an array of one."""
    return float(np.asarray(owner.compute_reward(achieved, desired, info)).item())


def _attributes_of(env: object) -> GoalReward:
    """Return the attributes of an environment that can be described by plain values."""
    values, arrays = {}, {}
    for name, value in vars(env).items():
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            arrays[name] = [value.dtype.str, value.tolist()]
        elif value is None or type(value) in {bool, int, float, str}:
            values[name] = value
    return {"values": values, "arrays": arrays}
