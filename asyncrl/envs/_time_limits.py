"""Time limits of episodes, kept for all environments of a batch at once.

Gymnasium's own `TimeLimit` and `OrderEnforcing` are calls of Python around every step of every
environment: 6 % of a CartPole's. Where they are the outermost wrappers, a batch steps what they
wrap, and does here what they would have done. A limit that is changed while an environment is in
use, as a curriculum may do, counts from its next episode on, in Gymnasium's wrapper at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from asyncrl.core.types import BoolArray

_NEVER = 2**62

_limit: Callable[[object], int] = attrgetter("_max_episode_steps")


class TimeLimits:
    """The steps that the episodes of a batch have left."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        peeled = [_peel(env) for env in envs]
        self.steps: list[Callable[[Any], Any]] = [env.step for env, _ in peeled]
        """What steps each environment, without the wrappers; only for what has been reset."""
        self._wrappers = [wrapper for _, wrapper in peeled]
        self._known: list[int] = [_limit(wrapper) for wrapper in self._wrappers]
        self._limits = np.array(self._known, np.int64)
        self._ends = self._limits.copy()
        self._turn = 0
        self._next_end = 0  # no episode can reach its limit earlier

    def begin(self, env_ids: Sequence[int]) -> None:
        """Note that these start new episodes."""
        rows = np.asarray(env_ids)
        for i in env_ids:
            if (limit := _limit(self._wrappers[i])) != self._known[i]:
                self._known[i] = self._limits[i] = limit
                self._next_end = 0
        self._ends[rows] = self._turn + self._limits[rows]

    def cut(self, truncated: BoolArray) -> BoolArray:
        """Count a step of each, and return the flags with those at their limit among them."""
        self._turn += 1
        if self._turn < self._next_end:
            return truncated
        over = self._ends <= self._turn
        # Those that are over begin anew, and none that begins from now on can end before this.
        soonest = self._turn + int(self._limits.min())
        self._next_end = int(self._ends[~over].min(initial=soonest))
        return truncated | over


class _Least:
    """Any number of wrappers as one, which allows as many steps as the strictest of them."""

    def __init__(self, wrappers: Sequence[TimeLimit[Any, Any]]) -> None:
        self._wrappers = wrappers

    @property
    def _max_episode_steps(self) -> int:
        return min((_limit(wrapper) for wrapper in self._wrappers), default=_NEVER)


def _peel(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], TimeLimit[Any, Any] | _Least]:
    """Return what Gymnasium's wrappers hold, and the one that limits its episodes."""
    limits = []
    # Exactly these: a class of the user's may do more, and so may a `step` put in by hand.
    while type(env) in {TimeLimit, OrderEnforcing} and "step" not in vars(env):
        if isinstance(env, TimeLimit):
            limits.append(env)
        env = env.env  # type: ignore[attr-defined]
    return env, limits[0] if len(limits) == 1 else _Least(limits)
