"""Storage and choice of samples; where data comes from, and threads, are others' business."""

from __future__ import annotations

from typing import Protocol

from asyncrl.segment import SegmentSchema
from asyncrl.types import Columns, IntArray

__all__ = ["ReplayBuffer", "ReplayBufferConfig"]


class ReplayBuffer(Protocol):
    """Keeps the newest transitions and gives out batches of them. Not thread-safe on its own."""

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy whole segments in, the oldest ones making room; return how many transitions.

        `columns` are (segments, rows, ...); `rows` says how many rows of each are filled.
        """
        ...

    def sample(self, batch_size: int) -> Columns:
        """Return a batch, in arrays that are the caller's.

        It has `obs`, `action`, `reward` (discounted sum over the steps taken together),
        `next_obs` (after them), `discount` (what to multiply the bootstrap value at `next_obs`
        with: 0 where the episode terminated), `model_version` (that acted) and the columns that
        the agent itself had stored.
        """
        ...

    def __len__(self) -> int:
        """Transitions that may be sampled now."""
        ...

    @property
    def capacity(self) -> int:
        """Transitions that it holds at the most."""
        ...


class ReplayBufferConfig(Protocol):
    """Builds a buffer once the segments are known."""

    @property
    def lookahead(self) -> int:
        """Rows that a segment must carry beyond those that may be sampled."""
        ...

    @property
    def capacity(self) -> int:
        """Transitions to hold at the most."""
        ...

    def build(self, schema: SegmentSchema, seed: int) -> ReplayBuffer:
        """Allocate it."""
        ...
