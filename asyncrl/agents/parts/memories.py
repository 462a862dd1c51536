"""A policy's memory of its environments: the state of a recurrent core. Loads no torch."""

from __future__ import annotations

from typing import Literal

import numpy as np

from asyncrl.core.types import Array, BoolArray

CoreKind = Literal["gru", "lstm"]
"""Cho et al. (2014), or Hochreiter and Schmidhuber (1997), whose memory is twice as large."""

MemoryKind = Literal["none", "gru", "lstm"]
"""Kinds of memory of a policy."""


def memory_size(kind: MemoryKind, n_units: int) -> int:
    """Return the size of the memory of this number of units."""
    return n_units * {"none": 0, "gru": 1, "lstm": 2}[kind]


class Memories:
    """A policy's memory of each environment, separate for training and evaluation.

    A synchronous run evaluates the acting policy in the middle of its episodes. There is memory for
    the number of rows of the last step; for any other number it is empty.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[bool, Array] = {}  # by `training`; never changed in place

    def recall(self, n_envs: int, *, training: bool) -> Array:
        """Return the memory (n_envs, size) that the next step starts from."""
        kept = self._kept.get(training)
        if kept is None or len(kept) != n_envs:
            return np.zeros((n_envs, self._size), np.float32)
        return kept

    def keep(self, memory: Array, *, training: bool) -> None:
        """Store this memory (B, size)."""
        self._kept[training] = memory

    def forget(self, where: BoolArray, *, training: bool) -> None:
        """Reset the memory of these environments (B,)."""
        kept = self._kept.get(training)
        if kept is None or not where.any():
            return
        if where.all() or len(where) != len(kept):
            del self._kept[training]
            return
        self._kept[training] = np.where(where[:, None], np.float32(0.0), kept)
