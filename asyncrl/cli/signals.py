"""Signals of a command line: the first one ends the run well, the second at once.

SIGTERM and SIGHUP are not waited for by those who send them: the run is given some grace, and no
more. SIGUSR1, with which schedulers warn of the end, saves a checkpoint, and the run goes on.

Only a process's own entry may set handlers; the library never does.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Self

from asyncrl.core.interrupter import Interrupter


class Countdown:
    """From `begin` on, calls each function when its seconds are over; the earliest comes first.

    They are called in a thread, which sees the time pass also while the main thread is in native
    code. Leaving the block before that calls off what has not been called.
    """

    def __init__(self, *due: tuple[float, Callable[[], object]]) -> None:
        self._due = due
        # Begun in a signal handler, which must need no lock: a put into a SimpleQueue is reentrant.
        # None says that the block is over.
        self._told: SimpleQueue[float | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="asyncrl-countdown", daemon=True)

    def begin(self) -> None:
        """Count from now on, if it does not count yet; also from a signal handler."""
        self._told.put(time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._told.put(None)
        self._thread.join()

    def _run(self) -> None:
        began = self._told.get()
        for after_s, act in self._due:
            if began is None or self._is_over_before(began + after_s):
                return
            act()

    def _is_over_before(self, deadline: float) -> bool:
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if self._told.get(timeout=left_s) is None:
                    return True
            except Empty:
                break
        return False


_DEAF = -1
_BLOCK_IS_OVER = b"\0"
_told: set[int] = set()
"""The ends of pipes that signals write to."""


@contextmanager
def hearing(hear: Callable[[int], object]) -> Iterator[None]:
    """Call `hear`, in a thread, with each signal that Python has a handler for, as it comes."""
    heard, told = os.pipe()
    os.set_blocking(told, False)  # it is written by the signal itself
    thread = threading.Thread(target=_hear, args=(heard, hear), name="asyncrl-ear", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _told.add(told)
    try:
        yield
    finally:
        if told in _told:  # else this is a forked child
            _told.discard(told)
            signal.set_wakeup_fd(before)
            os.write(told, _BLOCK_IS_OVER)
            thread.join()
        os.close(heard)
        os.close(told)


def _hear(descriptor: int, hear: Callable[[int], object]) -> None:
    while True:
        for number in os.read(descriptor, 4096):
            if not number:
                return
            hear(number)


def _be_deaf() -> None:
    """Keep what a forked child is told from its parent: they share the pipe."""
    if _told:
        _told.clear()
        signal.set_wakeup_fd(_DEAF)


os.register_at_fork(after_in_child=_be_deaf)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SENT_TWICE = (signal.SIGTERM, signal.SIGHUP)
_TWICE_WITHIN_S = 1.0
"""A terminal that is closed sends SIGHUP, and so does its shell; schedulers and what they start
forward SIGTERM to those who have it already. Within this time that is one signal."""

_AT_ONCE_S = 0.3
"""How long a run may take to end once its end was interrupted, too."""

_STDERR = 2
_SHOW_CURSOR = "\x1b[?25h"


def reserve_s(grace_s: float) -> float:
    """Return how long before its grace is over a run gives up what it still waits for."""
    return min(grace_s / 4, 2.0)


class GivenUp(KeyboardInterrupt):
    """The end of a run was cut short, too; says why, and how the command is to end."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class _Count:
    """How many signals came, as far as one of those knows who take note of them."""

    def __init__(self) -> None:
        self.value = 0
        self._came_at: dict[int, float] = {}

    def add(self, number: int) -> int:
        """Count a signal, unless it was sent twice; return how many came by now."""
        now = time.monotonic()
        before = self._came_at.get(number, -math.inf)
        if number not in _SENT_TWICE or now - before > _TWICE_WITHIN_S:
            self._came_at[number] = now
            self.value += 1
        return self.value


class Interrupted:
    """Which signal came, if any, and what comes of it.

    Each is heard in a thread and answered in the main thread, which may be in native code. Whoever
    comes first does what is to be done; only the main thread can be interrupted, though.
    """

    def __init__(self, interrupter: Interrupter, grace_s: float = 0.0) -> None:
        self._interrupter = interrupter
        self._signal: signal.Signals | None = None
        self._heard, self._answered = _Count(), _Count()
        self._most = 0
        self._overdue = False
        self._may_raise = True
        giving_up = (grace_s - reserve_s(grace_s), self._give_up), (grace_s, self._end)
        self.grace = Countdown(*(giving_up if grace_s else ()))
        self.last_moment = Countdown((_AT_ONCE_S, self._end))

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells do; 0 if none came."""
        return 128 + self._signal.value if self._signal else 0

    @property
    def hurry(self) -> str:
        """Why the end of the run was cut short, once it was."""
        if not self._overdue or not self._signal:
            return "interrupted twice; ended without a summary"
        name = self._signal.name
        return f"not done within the grace after {name}, see --grace-s; ended without a summary"

    def hear(self, number: int) -> None:
        """Take note of a signal, in any thread."""
        if number in _SIGNALS:
            self._came(signal.Signals(number), self._heard.add(number))

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Stop the run, then whatever the main thread waits for, then the process."""
        # Two that came while the main thread was in native code are answered as one.
        count = max(self._answered.add(number), self._heard.value)
        self._came(signal.Signals(number), count)
        if (count > 1 or self._overdue) and self._may_raise:
            self._may_raise = False
            raise KeyboardInterrupt

    def be_over(self) -> None:
        """Interrupt the main thread no more: the run has ended."""
        self._may_raise = False

    def _came(self, number: signal.Signals, count: int) -> None:
        if count >= self._most:  # the thread that hears may lag behind
            self._most, self._signal = count, number
        if number != signal.SIGINT:
            self.grace.begin()
        self._interrupter.stop(f"interrupted by {number.name}", urgent=True)
        if count == 2 and not self._overdue:
            self.last_moment.begin()
        elif count > 2:
            # The run is being torn down and still does not end: actors end with their launcher.
            os._exit(self.exit_code)

    def _give_up(self) -> None:
        if self._may_raise and self._signal:
            self._overdue = True
            os.kill(os.getpid(), self._signal)

    def _end(self) -> None:
        _say_unless_that_takes_time(f"asyncrl: {self.hurry}")
        os._exit(self.exit_code)


def _say_unless_that_takes_time(sentence: str) -> None:
    """Write a line to where errors go, in a thread that must not wait for whoever reads it."""
    writable = select.poll()
    writable.register(_STDERR, select.POLLOUT)
    with suppress(OSError):  # nobody reads it any more
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            cursor = _SHOW_CURSOR if os.isatty(_STDERR) else ""
            os.write(_STDERR, f"{cursor}{sentence}\n".encode())


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

    before = {number: signal.signal(number, seen.on_signal) for number in _not_ignored()}
    others = signal.signal(signal.SIGUSR1, on_save)
    try:
        with hearing(seen.hear), seen.grace, seen.last_moment:
            try:
                yield seen
            finally:
                seen.be_over()
    finally:
        signal.signal(signal.SIGUSR1, others)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_signals() -> None:
    """Let signals end the program at once, in silence, where nothing is left to do but to end.

    Python takes some time for that, and shows a traceback of what they interrupt.
    """
    for number in _not_ignored():
        signal.signal(number, lambda number, _: os._exit(128 + number))


def _not_ignored() -> list[signal.Signals]:
    # `nohup` has SIGHUP ignored, and wants that to stay so.
    return [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
