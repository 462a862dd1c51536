"""Curves of a run, read from its records: a bounded number of points, whatever the run's length.

Peaks survive: of each metric the lowest and the highest value of every stretch are kept.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.core.errors import ConfigError

logger = logging.getLogger(__name__)

AXES = {"env_steps": "environment steps", "opt_steps": "optimisation steps", "wall_s": "time"}
"""The metrics that curves can be drawn over -> what an axis is called."""

_MOST_STRETCHES = 300
"""A screen's width shows no more than twice as many points."""

_MOST_RESTARTS = 200

_PROGRESS_S = 2.0
"""A file that takes longer to read logs how far it is, as often."""

Points = list[float | None]


class Restart(NamedTuple):
    """A record that reported a restart of an actor."""

    actor: str
    at: Mapping[str, float]
    """Where it is, on each axis."""


class Curves:
    """All metrics of a run, over any of `AXES`."""

    def __init__(self, most_stretches: int = _MOST_STRETCHES) -> None:
        self._most = most_stretches
        self._width = 1
        self._stretches: list[_Stretch] = []
        self._records = 0
        self._restarts_before: dict[str, float] = {}
        self.restarts: list[Restart] = []
        """The restarts of actors, except where there are hundreds."""

    @classmethod
    def of_file(cls, path: Path) -> Curves:
        """Read `metrics.jsonl`; lines that are not whole records are passed over.

        Raises `ConfigError` if there is a file that cannot be read.
        """
        file = GrowingFile(path)
        try:
            file.read()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        return file.curves

    def add(self, record: Mapping[str, float | None]) -> None:
        """Add the next record. Numbers that are not finite are left out."""
        finite = {n: float(v) for n, v in record.items() if v is not None and math.isfinite(v)}
        if not finite.keys() >= AXES.keys():
            return
        if not self._stretches or self._stretches[-1].records == self._width:
            if len(self._stretches) == 2 * self._most:
                self._halve()
            self._stretches.append(_Stretch())
        self._stretches[-1].add(finite, self._records)
        self._records += 1
        self._note_restarts(finite)

    def names(self) -> list[str]:
        """Return the names of all metrics, in the order in which they first occurred."""
        return list(dict.fromkeys(n for stretch in self._stretches for n in stretch.extremes))

    def axis(self, name: str) -> list[float]:
        """Return the position of each point on an axis, never decreasing."""
        ends = (at[name] for stretch in self._stretches for at in stretch.ends())
        return list(accumulate(ends, max))

    def points(self, name: str) -> Points:
        """Return the values of a metric at these positions, None where it was not recorded."""
        return [value for stretch in self._stretches for value in stretch.values(name)]

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric."""
        return next((value for value in reversed(self.points(name)) if value is not None), None)

    def _halve(self) -> None:
        """Join each two neighbouring stretches."""
        pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
        self._stretches = [first.joined(second) for first, second in pairs]
        self._width *= 2

    def _note_restarts(self, record: Mapping[str, float]) -> None:
        counts = {actor: record[name] for name, actor in _restart_counts(tuple(record))}
        if not counts:
            return
        more = [a for a, count in counts.items() if count > self._restarts_before.get(a, 0.0)]
        self._restarts_before |= counts
        at = {axis: record[axis] for axis in AXES}
        room = _MOST_RESTARTS - len(self.restarts)
        self.restarts += [Restart(actor, at) for actor in more[:room]]


class GrowingFile:
    """The curves of a file of records, to which a run may be appending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0
        self.curves = Curves()

    def read(self) -> bool:
        """Add the lines that are new; return whether there were any.

        A file that is now shorter is read from its beginning: a run was resumed, which removes the
        records that are later than its checkpoint.
        """
        if not self._path.exists():  # nothing has been recorded yet
            return False
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self._bytes:
                self._bytes, self.curves = 0, Curves()
            begun = file.seek(self._bytes)
            shown_at = time.monotonic()
            for line in file:
                if time.monotonic() - shown_at > _PROGRESS_S:
                    shown_at = time.monotonic()
                    done = min(100, 100 * self._bytes // max(1, size))  # it may grow meanwhile
                    logger.info("read %d %% of %s", done, self._path)
                if not line.endswith(b"\n"):  # it is being written; its end may follow at once
                    break
                self._bytes += len(line)
                if record := _as_record(line):
                    self.curves.add(record)
        return self._bytes > begun


class _Stretch:
    """The extremes of neighbouring records."""

    __slots__ = ("extremes", "first", "last", "records")

    def __init__(self) -> None:
        self.records = 0
        self.first: Mapping[str, float] = {}
        self.last: Mapping[str, float] = {}
        self.extremes: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {}
        """The lowest and the highest value, each with the number of its record."""

    def add(self, record: Mapping[str, float], number: int) -> None:
        self.last = {axis: record[axis] for axis in AXES}
        self.first = self.first or self.last
        self.records += 1
        extremes = self.extremes
        # Runs for every number of a run, and few of them are extremes.
        for name, value in record.items():
            before = extremes.get(name)
            if before is None:
                extremes[name] = (value, number), (value, number)
            elif value < before[0][0]:
                extremes[name] = (value, number), before[1]
            elif value > before[1][0]:
                extremes[name] = before[0], (value, number)

    def joined(self, other: _Stretch) -> _Stretch:
        for name, (low, high) in other.extremes.items():
            self._widen(name, low, high)
        self.last = other.last
        self.records += other.records
        return self

    def _widen(self, name: str, low: tuple[float, int], high: tuple[float, int]) -> None:
        before = self.extremes.get(name)
        if before is not None:
            low = min(before[0], low)
            high = max(before[1], high, key=lambda extreme: extreme[0])
        self.extremes[name] = low, high

    def ends(self) -> Sequence[Mapping[str, float]]:
        """Return where its points are: one for a single record, otherwise two."""
        return (self.last,) if self.records == 1 else (self.first, self.last)

    def values(self, name: str) -> Sequence[float | None]:
        """Return the extremes in the order in which they occurred."""
        extremes = self.extremes.get(name)
        if extremes is None:
            return (None,) * len(self.ends())
        ordered = sorted(extremes, key=lambda extreme: extreme[1])
        return [value for value, _ in ordered[: len(self.ends())]]


@lru_cache(maxsize=64)
def _restart_counts(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return those of a record's metrics that count restarts, and their actors."""
    return [
        (name, name.split("/")[1])
        for name in names
        if name.startswith("actor/") and name.endswith("/restarts")
    ]


def _as_record(line: bytes) -> dict[str, Any] | None:
    """Return a record, or None if the line is cut off or being written."""
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None
