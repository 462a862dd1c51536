"""Signals of a command line: the first one ends the run well, the second at once.

SIGUSR1, with which schedulers warn of the end, saves a checkpoint, and the run goes on.

Only a process's own entry may set handlers; the library never does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from asyncrl.interrupter import Interrupter

__all__ = ["Interrupted", "interrupting"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted:
    """Which signal came, if any."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.count = 0

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells do; 0 if none came."""
        return 128 + self.signal.value if self.signal else 0


@contextmanager
def interrupting(interrupter: Interrupter) -> Iterator[Interrupted]:
    """Let SIGINT, SIGTERM and SIGHUP stop a run, and SIGUSR1 save it, while the block runs."""
    seen = Interrupted()

    def on_signal(number: int, _: FrameType | None) -> None:
        seen.count += 1
        seen.signal = signal.Signals(number)
        if seen.count == 1:
            interrupter.stop(f"interrupted by {seen.signal.name}", urgent=True)
        elif seen.count == 2:
            raise KeyboardInterrupt
        else:
            # The run is being torn down and still does not end: actors end with their launcher.
            os._exit(seen.exit_code)

    def on_save(number: int, frame: FrameType | None) -> None:
        interrupter.save_requested = True
        if callable(others):
            others(number, frame)

    # `nohup` has SIGHUP ignored, and wants that to stay so.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heard}
    others = signal.signal(signal.SIGUSR1, on_save)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGUSR1, others)
        for number, handler in before.items():
            signal.signal(number, handler)
