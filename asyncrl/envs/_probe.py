"""One environment, plain or of several, driven by hand: every answer as it came, and what follows.

Shares nothing with the batches that train on it: it is there to find out what they rely on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from asyncrl.core.types import BoolArray

Row = Any  # an observation of one environment; Python has no common type for these


@dataclass(frozen=True, slots=True)
class Answer:
    """What all environments of a probe answered to one action each."""

    rows: list[Row]
    """Observations as `step` returned them."""

    rewards: list[Any]
    terminated: list[Any]
    truncated: list[Any]
    stepped: BoolArray
    """False where the vector environment only reset, if it does as it says."""

    infos: dict[str, Any]
    """Of a vector environment; they say where it did more than step."""


class Probe:
    """Plays with random actions, and resets what has to be reset by hand."""

    def __init__(self, env: Any, seed: int = 0) -> None:  # noqa: ANN401  # plain or vector
        self.env = env
        self.vector = isinstance(env, VectorEnv)
        self.n_envs: int = env.num_envs if self.vector else 1
        prefix = "single_" if self.vector else ""
        self.observation_space: Space[Any] = getattr(env, f"{prefix}observation_space")
        self._action_space: Space[Any] = getattr(env, f"{prefix}action_space")
        self._batched_space = batch_space(self.observation_space, self.n_envs)
        self._action_space.seed(seed)
        self.mode = _mode(env) if self.vector else AutoresetMode.DISABLED
        self.time_limit: int | None = getattr(env.spec, "max_episode_steps", None)
        self.rows: list[Row] = []
        """The last observations, to act on next."""
        self.ended = np.zeros(self.n_envs, bool)
        """Where the last step has ended an episode."""
        self._resetting = np.zeros(self.n_envs, bool)

    def reset(self, seed: int | None = None) -> list[Row]:
        """Start all episodes anew."""
        self._resetting = self.ended = np.zeros(self.n_envs, bool)
        self.rows = self._rows(self.env.reset(seed=seed)[0])
        return self.rows

    def sample(self) -> list[Any]:
        """Draw one action for each environment."""
        return [self._action_space.sample() for _ in range(self.n_envs)]

    def step(self, actions: Sequence[Any]) -> Answer:
        """Act, and reset nothing."""
        if self.vector:
            batch: Any = create_empty_array(self._action_space, self.n_envs)
            answer = self.env.step(concatenate(self._action_space, actions, batch))
            obs, rewards, terminated, truncated, infos = answer
        else:
            obs, *flat, infos = self.env.step(actions[0])
            rewards, terminated, truncated = ([value] for value in flat)
        self.rows = self._rows(obs)
        stepped = ~self._resetting
        self.ended = (np.asarray(terminated, bool) | np.asarray(truncated, bool)) & stepped
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = self.ended
        return Answer(self.rows, [*rewards], [*terminated], [*truncated], stepped, infos)

    def reset_ended(self) -> None:
        """Reset what has ended, if that has to be done by hand."""
        if self.mode is not AutoresetMode.DISABLED or not self.ended.any():
            return
        options = {"options": {"reset_mask": self.ended.copy()}} if self.vector else {}
        self.rows = self._rows(self.env.reset(**options)[0])

    def _rows(self, obs: Any) -> list[Row]:  # noqa: ANN401  # from foreign code
        return [*iterate(self._batched_space, obs)] if self.vector else [obs]


def _mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode | None:
    try:
        return AutoresetMode((env.metadata or {}).get("autoreset_mode"))
    except ValueError:
        return None
