"""Signals of a command line: the first one ends the run well, the second at once.

SIGTERM and SIGHUP are not waited for by those who send them: the run is given some grace, and no
more. SIGUSR1, with which schedulers warn of the end, saves a checkpoint, and the run goes on.

Only a process's own entry may set handlers; the library never does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from asyncrl.cli._grace import Grace
from asyncrl.interrupter import Interrupter

__all__ = ["GivenUp", "Interrupted", "interrupting"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class GivenUp(KeyboardInterrupt):
    """The end of a run was cut short, too; says why, and how the command is to end."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Interrupted:
    """Which signal came, if any, and what comes of it."""

    def __init__(self, interrupter: Interrupter, grace_s: float = 0.0) -> None:
        self._interrupter = interrupter
        self._signal: signal.Signals | None = None
        self._count = 0
        self._overdue = False
        self.grace = Grace(grace_s, give_up=self._give_up, end=lambda: os._exit(self.exit_code))

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells do; 0 if none came."""
        return 128 + self._signal.value if self._signal else 0

    @property
    def hurry(self) -> str:
        """Why the end of the run was cut short, once it was."""
        if not self._overdue or not self._signal:
            return "interrupted twice"
        return f"not done within the grace after {self._signal.name}, see --grace-s"

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Stop the run, then whatever is waited for, then the process."""
        self._count += 1
        self._signal = signal.Signals(number)
        if self._signal != signal.SIGINT:
            self.grace.begin()
        if self._count == 1:
            self._interrupter.stop(f"interrupted by {self._signal.name}", urgent=True)
        elif self._count == 2:
            raise KeyboardInterrupt
        else:
            # The run is being torn down and still does not end: actors end with their launcher.
            os._exit(self.exit_code)

    def _give_up(self) -> None:
        # Nothing is written here: should whoever reads it hang, this thread would, too.
        if self._count == 1 and self._signal:
            self._overdue = True
            os.kill(os.getpid(), self._signal)


@contextmanager
def interrupting(interrupter: Interrupter, grace_s: float = 0.0) -> Iterator[Interrupted]:
    """Let SIGINT, SIGTERM and SIGHUP stop a run, and SIGUSR1 save it, while the block runs.

    Of the block there is nothing left `grace_s` seconds after a SIGTERM or SIGHUP; 0 is off.
    """
    seen = Interrupted(interrupter, grace_s)

    def on_save(number: int, frame: FrameType | None) -> None:
        interrupter.save_requested = True
        if callable(others):
            others(number, frame)

    # `nohup` has SIGHUP ignored, and wants that to stay so.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, seen.on_signal) for number in heard}
    others = signal.signal(signal.SIGUSR1, on_save)
    try:
        with seen.grace:
            yield seen
    finally:
        signal.signal(signal.SIGUSR1, others)
        for number, handler in before.items():
            signal.signal(number, handler)
