"""The contract of what keeps metrics over time. Does not know how they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

Record = Mapping[str, float]
"""Flat names of metrics and their values. `metrics.py` lists names and units."""

CLOCK_TIME = "%Y-%m-%dT%H:%M:%S%z"
"""Format of the time in lines that are read later: local time with its zone."""


def axis_of(record: Record) -> str:
    """Return the metric that a record is drawn over: environment steps.

    A run that makes none, as an offline one, is drawn over its optimisation steps.
    """
    return "opt_steps" if record.get("opt_steps") and not record.get("env_steps") else "env_steps"


class Recorder(Protocol):
    """Keeps records. Called from one thread; may block, since `BackgroundRecorder` buffers for it.

    Calls come in the order `start` once, `write` any number of times, `close` once with how the run
    ended. `close` is called after a failure, too, and calling it again has no effect. A recorder
    that continues earlier records may also implement `ResumableRecorder`.
    """

    def start(self, config: Mapping[str, object]) -> None:
        """Receive the run's configuration: plain values, nested; empty if none was given."""
        ...

    def write(self, record: Record) -> None:
        """Keep one record. It contains `env_steps`, `opt_steps` and `wall_s` for the axes.

        The other names differ between records: those of evaluations, for instance.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """Write out pending records and release files; `failed` marks a run that raised."""
        ...


@runtime_checkable
class ResumableRecorder(Protocol):
    """A recorder that is informed where a resumed run continues."""

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        """Called before `start` with that position; discard records from after it."""
        ...


@runtime_checkable
class BufferingRecorder(Protocol):
    """A recorder that returns from `write` before the record is written."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are written; return False if the time was too short."""
        ...
