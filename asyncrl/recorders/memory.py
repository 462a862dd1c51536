"""Records kept in memory, for notebooks and tests.

Writes no files; a long run's records stay in memory until the recorder is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.core.recorder import Record


class MemoryRecorder:
    """Keeps everything it is given, in plain attributes."""

    def __init__(self) -> None:
        self.config: dict[str, object] = {}
        """The run's configuration."""

        self.records: list[dict[str, float]] = []
        """All records, oldest first."""

        self.failed: bool | None = None
        """How the run ended; None until it has."""

    def start(self, config: Mapping[str, object]) -> None:
        self.config = dict(config)

    def write(self, record: Record) -> None:
        self.records.append({name: float(value) for name, value in record.items()})

    def close(self, *, failed: bool) -> None:
        if self.failed is None:
            self.failed = failed

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric, or None if no record had it."""
        return next((record[name] for record in reversed(self.records) if name in record), None)
