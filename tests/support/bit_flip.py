"""The bit-flip task of the paper on hindsight: reach a pattern of bits, one flip per step.

The reward is -1 in each step after which the bits are not the goal's. Without hindsight a policy of
many bits hardly ever sees another reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary

from asyncrl.core.types import Array


class BitFlip(gym.Env[dict[str, Array], int]):
    """Episodes end at the goal, or after as many steps as there are bits."""

    def __init__(self, n_bits: int = 8) -> None:
        bits = MultiBinary(n_bits)
        names = "observation", "achieved_goal", "desired_goal"
        self.observation_space = Dict(dict.fromkeys(names, bits))
        self.action_space = Discrete(n_bits)  # type: ignore[assignment]
        self.n_bits = n_bits
        self._bits: list[int] = []
        self._goal: list[int] = []
        self._n_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, self.n_bits)).tolist()
        self._n_steps = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._bits[action] ^= 1
        self._n_steps += 1
        success = self._bits == self._goal
        over = self._n_steps >= self.n_bits
        return self._obs(), float(success) - 1, success, over, {"is_success": success}

    def compute_reward(self, achieved: Array, desired: Array, info: Mapping[str, Any]) -> Any:
        return (achieved == desired).all(axis=-1).astype(np.float32) - 1

    def _obs(self) -> dict[str, Array]:
        bits, goal = np.array(self._bits, np.int8), np.array(self._goal, np.int8)
        return {"observation": bits, "achieved_goal": bits.copy(), "desired_goal": goal}
