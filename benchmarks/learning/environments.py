"""Environments of tasks that Gymnasium does not provide."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

_EPISODE_STEPS = 5000
"""Steps after which an episode of Breakout is truncated: a perfect player's would never end."""


class _Positions(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities: what a picture of it would show."""

    _SEEN = (0, 2)

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        whole: Any = env.observation_space
        low, high = whole.low[[*self._SEEN]], whole.high[[*self._SEEN]]
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return observation[[*self._SEEN]]


class _MinAtar(gym.Env[Any, Any]):
    """A game of MinAtar: channels first, with only the actions that have an effect."""

    def __init__(self, game: str) -> None:
        from minatar import Environment  # noqa: PLC0415  # nothing else needs the package

        self._game = Environment(game)
        self._actions = self._game.minimal_action_set()
        height, width, planes = self._game.state_shape()
        self.observation_space = gym.spaces.Box(0, 255, (planes, height, width), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.last_action = 0  # which it would repeat across episodes
        self._game.reset()
        return self._planes(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, over = self._game.act(self._actions[action])
        return self._planes(), float(reward), bool(over), False, {}

    def _planes(self) -> npt.NDArray[np.uint8]:
        return np.where(self._game.state().transpose(2, 0, 1), np.uint8(255), np.uint8(0))


def cartpole_hidden() -> gym.Env[Any, Any]:
    """Return CartPole-v1 that shows positions of cart and pole, not velocities."""
    return _Positions(gym.make("CartPole-v1", disable_env_checker=True))


def minatar_breakout() -> gym.Env[Any, Any]:
    """Return MinAtar's Breakout with sticky actions of probability 0.1."""
    return gym.wrappers.TimeLimit(_MinAtar("breakout"), _EPISODE_STEPS)
