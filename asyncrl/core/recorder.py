"""Numbers over time: what a record is, and who keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

Record = Mapping[str, float]
"""Flat metric names and their values. Names and units are listed in `metrics.py`."""

CLOCK_TIME = "%Y-%m-%dT%H:%M:%S%z"
"""How lines that are read later say when they were written: local time, with its zone."""


class Recorder(Protocol):
    """Keeps records. Called from one thread; may block, for `BackgroundRecorder` stands before it.

    The order of calls is `start` once, `write` any number of times, `close` once with how the
    run ended. `close` is called also when the run failed, and calling it again does nothing. One
    that continues what it kept before may be a `GoesOn`, too.
    """

    def start(self, config: Mapping[str, object]) -> None:
        """Take note of the run's configuration: plain values, nested; empty if none was given."""
        ...

    def write(self, record: Record) -> None:
        """Keep one record. It carries `env_steps`, `opt_steps` and `wall_s` for the axes.

        Records differ in the other names they carry: those of evaluations, for instance.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """Write out what is pending and release files; `failed` marks a run that raised."""
        ...


@runtime_checkable
class GoesOn(Protocol):
    """A recorder that wants to know where a run goes on from that is resumed."""

    def go_on(self, *, env_steps: int, opt_steps: int) -> None:
        """Take note, before `start`, of where that is; what came after it has never been."""
        ...
