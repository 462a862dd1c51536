"""Observations with several fields: an image and a discrete value, each with its own encoder.

The image shows the walker's position in a corridor. The discrete value says which end of the
corridor is the goal. The agent needs both.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from asyncrl import MaxOptSteps, ReachesUpperBound, RunConfig, TrainResult, make_batch, train_async
from asyncrl.agents.dqn import DQNConfig

LENGTH = 9


class Corridor(gym.Env[Any, Any]):
    """A corridor: episodes start in the middle, a step costs 1 point, and the goal is worth 10."""

    def __init__(self) -> None:
        self.action_space = Discrete(2)
        self.observation_space = Dict(
            picture=Box(0, 255, (1, 1, LENGTH), np.uint8), goal=Discrete(2)
        )
        self.at = self.goal = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put the walker in the middle and the goal at a random end."""
        super().reset(seed=seed)
        self.at, self.goal = LENGTH // 2, int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move left (0) or right (1)."""
        self.at = min(max(self.at + 2 * action - 1, 0), LENGTH - 1)
        there = self.at == self.goal * (LENGTH - 1)
        return self.observe(), 9.0 if there else -1.0, there, False, {}

    def observe(self) -> dict[str, Any]:
        """Return the picture and the goal."""
        picture = np.zeros((1, 1, LENGTH), np.uint8)
        picture[..., self.at] = 255
        return {"picture": picture, "goal": self.goal}


def main(max_opt_steps: int = 20_000) -> TrainResult:
    """Train until the walker goes straight to the goal at either end."""
    result = train_async(
        DQNConfig(),  # a custom network would get a dict of tensors with the same keys
        make_batch(lambda: gym.wrappers.TimeLimit(Corridor(), 30), n_envs=8),
        RunConfig(actors=2),
        stop=ReachesUpperBound("eval_reward", 6.0) | MaxOptSteps(max_opt_steps),
    )
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main()
