"""Uniform replay: every transition in it is equally likely to be sampled.

Does not know where segments come from, and holds no lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.replay_buffers._ring import Ring, RingConfig
from asyncrl.segment import SegmentSchema
from asyncrl.types import Columns, IntArray

__all__ = ["UniformReplay", "UniformReplayConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformReplayConfig(RingConfig):
    """Size of the replay, and how returns are made of it."""

    def build(self, schema: SegmentSchema, seed: int) -> UniformReplay:
        """Allocate the ring."""
        return UniformReplay(self, schema, seed)


class UniformReplay:
    """Draws transitions with replacement, each as likely as the others."""

    def __init__(self, config: UniformReplayConfig, schema: SegmentSchema, seed: int) -> None:
        self._ring = Ring(config, schema)
        self._random = np.random.default_rng(seed)

    @property
    def capacity(self) -> int:
        """Transitions that it holds at the most."""
        return self._ring.capacity

    @property
    def nbytes(self) -> int:
        """Bytes that it takes when it is full."""
        return self._ring.nbytes

    def __len__(self) -> int:
        return len(self._ring)

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy segments in, the oldest making room; return how many transitions they hold."""
        return self._ring.push(columns, rows)

    def sample(self, batch_size: int) -> Columns:
        """Draw transitions."""
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        drawn = self._random.integers(self._ring.oldest, self._ring.newest, batch_size)
        return self._ring.transitions(self._ring.rows(drawn))
