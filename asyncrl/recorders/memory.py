"""Records kept in memory, for notebooks and tests.

Writes no files; a long run's records stay in memory as long as the recorder exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.core.recorder import Record
from asyncrl.metrics.curves import draw


class MemoryRecorder:
    """Keeps the configuration and all records in plain attributes."""

    def __init__(self) -> None:
        self.config: dict[str, object] = {}
        """The run's configuration."""

        self.records: list[dict[str, float]] = []
        """All records, oldest first."""

        self.failed: bool | None = None
        """Whether the run failed; None until it ends."""

    def start(self, config: Mapping[str, object]) -> None:
        self.config = dict(config)

    def write(self, record: Record) -> None:
        self.records.append({name: float(value) for name, value in record.items()})

    def close(self, *, failed: bool) -> None:
        if self.failed is None:
            self.failed = failed

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric, or None if no record has it."""
        return next((record[name] for record in reversed(self.records) if name in record), None)

    def plot(self, *names: str, axis: str | None = None) -> Any:
        """Draw metrics, by default the returns, and return the figure. Needs matplotlib.

        The axis is `env_steps`, or `opt_steps` of an offline run, unless another one is given.
        """
        return draw(self.records, names or ("episode/return_mean", "eval_reward"), axis)
