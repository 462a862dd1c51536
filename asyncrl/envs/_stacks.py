"""Stacks of frames, newest last, in which an episode's first frame stands for those before it."""

from __future__ import annotations

import numpy as np

from asyncrl.core.types import Array, BoolArray


class FrameStacks:
    """Mends the first stacks of episodes, whatever the environment puts before the first frame.

    Some environments put black frames there, or those of the life before. A replay buffer that
    stores single frames can only repeat the episode's first one, and must build the very stacks
    that the policy saw. Writes into the arrays it is given.
    """

    def __init__(self, n_envs: int, n_frames: int) -> None:
        self._oldest = n_frames - 1
        self._age = np.zeros(n_envs, np.int64)

    def begin(self, obs: Array, begun: BoolArray | None = None) -> None:
        """Start an episode in these environments, or in all of them, with these stacks."""
        self._age[... if begun is None else begun] = 0
        self._mend(obs)

    def follow(self, obs: Array, begun: BoolArray | None = None) -> None:
        """Take the stacks of one step later, of which some may have begun an episode."""
        self._age += 1
        if begun is not None:
            self._age[begun] = 0
        self._mend(obs)

    def _mend(self, obs: Array) -> None:
        for i in np.flatnonzero(self._age < self._oldest):
            first = self._oldest - self._age[i]
            obs[i, :first] = obs[i, first]
