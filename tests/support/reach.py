"""The smallest task of goals on continuous actions: move a point on a line to a place on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from asyncrl.core.types import Array

_STEPS = 10


class Reach(gym.Env[dict[str, Array], Array]):
    """Episodes have 10 steps. The reward is 0 near the goal, and otherwise -1."""

    def __init__(self, near: float = 0.1) -> None:
        self._near = near
        line = Box(-1, 1, (1,), np.float32)
        self.observation_space = Dict(
            {"observation": line, "achieved_goal": line, "desired_goal": line}
        )
        self.action_space = Box(-0.3, 0.3, (1,), np.float32)
        self._place, self._goal = np.zeros((2, 1), np.float32)
        self._n_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        self._n_steps = 0
        return self._obs(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + action, -1, 1)
        self._n_steps += 1
        reward = float(self.compute_reward(self._place, self._goal, {}))
        over = self._n_steps >= _STEPS
        return self._obs(), reward, False, over, {"is_success": reward == 0}

    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        return (np.abs(achieved - desired)[..., 0] < self._near).astype(np.float32) - 1

    def _obs(self) -> dict[str, Array]:
        goals = {"achieved_goal": self._place.copy(), "desired_goal": self._goal.copy()}
        return {"observation": self._place.copy(), **goals}
