"""Checks every stored transition, independently of the ledger.

Observations of `worlds.Numbered` name their incarnation and step. That shows each transition that
is stored twice, and each that is missing before a later one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from benchmarks.chaos.worlds import SCALE


@dataclass(slots=True)
class Audit:
    """What has been stored of each incarnation, and when."""

    twice: int = 0
    """Transitions that were stored already."""

    gaps: int = 0
    """Transitions missing before one that was stored."""

    unmodelled: int = 0
    """Transitions that no model had produced."""

    first_at: dict[int, float] = field(default_factory=dict)
    """Incarnation -> when its first transition was stored, by the monotonic clock."""

    pushed_at: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The model that acted last in each part that was stored, at `pushed_at`."""

    keeps_times: bool = False
    """Whether the last two are kept."""

    _next: dict[tuple[int, int], int] = field(default_factory=dict)

    def stored(self, incarnation: int) -> int:
        """Return how many transitions of an incarnation are stored."""
        return sum(count for (of, _), count in self._next.items() if of == incarnation)

    def total(self) -> int:
        """Return how many are stored of all."""
        return sum(self._next.values())

    def look(self, columns: Columns, rows: IntArray, schema: SegmentSchema) -> None:
        """Check what is about to be stored."""
        now = time.monotonic()
        sampled = schema.sampled
        for i, filled in enumerate(rows):
            part = slice(sampled.start, min(int(filled), sampled.stop))
            counts = columns["flags"][i, part] < END
            obs = columns["obs"][i, part][counts]
            if len(obs):
                self._look_at(np.rint(obs[:, :3] / SCALE).astype(np.int64), now)
            self.unmodelled += int((columns["model_version"][i, part][counts] < 0).sum())
        if self.keeps_times:
            self.pushed_at.append(now)
            self.versions.append(int(columns["model_version"][:, sampled].max()))

    def _look_at(self, numbers: Array, now: float) -> None:
        """Compare the steps of one environment with those stored before."""
        incarnation, env, first = (int(number) for number in numbers[0])
        expected = self._next.get((incarnation, env), 0)
        steps = numbers[:, 2]
        self.twice += max(0, expected - first) + int((np.diff(steps) < 1).sum())
        self.gaps += max(0, first - expected) + int(np.maximum(np.diff(steps) - 1, 0).sum())
        self._next[incarnation, env] = int(steps[-1]) + 1
        self.first_at.setdefault(incarnation, now)


@dataclass(frozen=True, kw_only=True)
class AuditedReplayConfig(UniformReplayConfig):
    """A uniform replay whose intake is looked at."""

    audit: Audit

    def build(self, schema: SegmentSchema, seed: int) -> UniformReplay:
        """Allocate it."""
        return _Audited(self, schema, seed)


class _Audited(UniformReplay):
    def __init__(self, config: AuditedReplayConfig, schema: SegmentSchema, seed: int) -> None:
        super().__init__(config, schema, seed)
        self._audit = config.audit

    def stage(
        self, columns: Columns, rows: IntArray, pause: Callable[[], object]
    ) -> Callable[[], int]:
        push = super().stage(columns, rows, pause)

        def looked_at() -> int:
            self._audit.look(columns, rows, self.schema)
            return push()

        return looked_at
