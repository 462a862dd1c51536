"""Uniform replay: every transition in it is equally likely to be sampled.

Does not know where segments come from, and holds no lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.core.segment import SegmentSchema
from asyncrl.core.types import Array, IntArray
from asyncrl.replay_buffers._ring import Ring
from asyncrl.replay_buffers._ring_config import RingConfig
from asyncrl.replay_buffers._shell import RingReplay, Uniformly


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformReplayConfig(RingConfig):
    """Size of the replay, and how returns are made of it."""

    def build(self, schema: SegmentSchema, seed: int) -> UniformReplay:
        """Allocate the ring."""
        return UniformReplay(self, schema, seed)


class UniformReplay(RingReplay):
    """Draws transitions with replacement, each as likely as the others."""

    def __init__(self, config: UniformReplayConfig, schema: SegmentSchema, seed: int) -> None:
        ring = Ring(config, schema)
        super().__init__(ring, Uniformly(ring, seed))

    def _gather(self, rows: IntArray) -> dict[str, Array]:
        return self._ring.transitions(rows)
