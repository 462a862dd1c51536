"""A custom environment: any Gymnasium environment, given by the function that makes it.

The environment is a thermostat. The room cools towards the outside temperature, which drifts. Each
minute the agent turns the heating on or off. A minute costs 0.1 if the heating is on, and 0.1 for
each degree of distance from 20 degrees.

    python -m examples.own_env
    asyncrl doctor examples.own_env:make_room                     # is it ready for training?
    asyncrl train dqn --env examples.own_env:make_room --env-kwargs power 1.5
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from asyncrl import EnvConfig, MaxOptSteps, ReachesUpperBound, RunConfig, TrainResult, train_async
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.types import Array

WANTED = 20.0


class Room(gym.Env[Array, np.int64]):
    """A room with a heater; observations are the temperatures inside and outside."""

    def __init__(self, power: float = 2.0) -> None:
        self.power = power
        self.observation_space = Box(-5.0, 5.0, (2,), np.float32)
        self.action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start with a cold room; all randomness comes from the seeded `self.np_random`."""
        super().reset(seed=seed)
        self.inside, self.outside = 10.0, float(self.np_random.uniform(-5.0, 15.0))
        return self.observe(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Heat (1) or not (0) for a minute; only `TimeLimit` ends the episode, by truncation."""
        self.outside += float(self.np_random.normal(0.0, 0.1))
        self.inside += self.power * float(action) - 0.05 * (self.inside - self.outside)
        gap, energy = abs(self.inside - WANTED), self.power * float(action)
        cost = 0.1 * float(action) + 0.1 * gap
        return self.observe(), -cost, False, False, {"gap": gap, "energy": energy}

    def observe(self) -> Array:
        """Return both temperatures, relative to 20 degrees and scaled for networks."""
        both = np.array([self.inside - WANTED, self.outside - WANTED], np.float32) / 10
        return np.clip(both, -5.0, 5.0)


def make_room(power: float = 2.0) -> gym.Env[Array, np.int64]:
    """Return the room with a time limit of one hour."""
    return gym.wrappers.TimeLimit(Room(power), 60)


def main(max_opt_steps: int = 4000) -> TrainResult:
    """Train until an episode costs 12. Random heating costs 33, and a good rule costs 8."""
    result = train_async(
        DQNConfig(),
        EnvConfig(id="examples.own_env:make_room", kwargs={"power": 2.0}, n_envs=8).build,
        RunConfig(actors=2),
        stop=ReachesUpperBound("eval_reward", -12.0) | MaxOptSteps(max_opt_steps),
    )
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main()
