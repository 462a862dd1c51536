"""Signals of a command line: the first one ends the run well, the second at once.

Every command answers from its first moment: the first signal raises `KeyboardInterrupt` in the main
thread. A run, once it has been built, stops and saves instead. Without handlers a process with
number 1, as in a container, would not even end: the system ignores signals for it by default.

SIGTERM and SIGHUP are not waited for by those who send them: the run is given some grace, and no
more. SIGUSR1, with which schedulers warn of the end, saves a checkpoint, and the run goes on.

One thread decides all that. It hears each signal as it comes, also while the main thread is in
native code, and it can end the process, whatever hangs: actors end with their launcher, and of a
checkpoint that is being written the one before is left.

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
from types import FrameType

from asyncrl.core.interrupter import Interrupter, start_thread

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SENT_TWICE = (signal.SIGTERM, signal.SIGHUP)
_TWICE_WITHIN_S = 1.0
"""A terminal that is closed sends SIGHUP, and so does its shell; schedulers and what they start
forward SIGTERM to those who have it already. Within this time that is one signal."""

_COMMAND_GRACE_S = 8.0
"""How long a command may take to end after SIGTERM: `docker stop` kills after 10 s."""

_LONGEST_POLL_S = 3600.0
"""poll() counts milliseconds, and not many of them."""

_SUMMARY_S = 0.5
"""Of what is left of the grace."""

_DEAF = -1
_BLOCK_IS_OVER = b"\0"
_STDERR = 2
_SHOW_CURSOR = "\x1b[?25h\n"  # and leave the line in which a live view ends

_told: set[int] = set()
"""The ends of pipes that signals write to."""


def reserve_s(grace_s: float) -> float:
    """Return how long before its grace is over a process ends, so that its actors end in time."""
    return min(grace_s / 4, 1.0)


class Interrupted:
    """Which signal came, if any, and what comes of it."""

    def __init__(
        self, interrupter: Interrupter, grace_s: float, *, limit: str = "--grace-s"
    ) -> None:
        """`limit` is what messages call the grace."""
        self._interrupter = interrupter
        self._limit = limit
        self._grace_s = grace_s - reserve_s(grace_s) if grace_s else math.inf
        self._deadline = math.inf
        self._signal: signal.Signals | None = None
        self._came_at: dict[int, float] = {}
        self._may_end = True
        self.save_summary: Callable[[], object] | None = None
        """What saves a summary when the grace is over, whatever hangs; it gets 0.5 s."""

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells do; 0 if none came."""
        return 128 + self._signal if self._signal else 0

    def be_over(self) -> None:
        """End the process no more: the run has ended."""
        self._may_end = False

    def listen(self, descriptor: int) -> None:
        """Decide about each signal that a pipe tells of, until it tells that the block is over."""
        pipe = select.poll()
        pipe.register(descriptor, select.POLLIN)
        while True:
            left_s = max(self._deadline - time.monotonic(), 0.0)
            if pipe.poll(1e3 * min(left_s, _LONGEST_POLL_S)):
                if not all(map(self._goes_on, os.read(descriptor, 4096))):
                    return
            elif not left_s and self._signal:
                self._deadline = math.inf
                save, self.save_summary = self.save_summary, None
                is_saved = self._may_end and save is not None and _done_in_time(save)
                why = f"not done within {self._limit} after {self._signal.name}"
                self._end(why, "with" if is_saved else "without")

    def _goes_on(self, number: int) -> bool:
        """Take a byte of the pipe; return whether it says that the block goes on."""
        if number in _SIGNALS:
            self._hear(signal.Signals(number))
        return number > 0

    def _hear(self, number: signal.Signals) -> None:
        now = time.monotonic()
        before = self._came_at.get(number, -math.inf)
        if number in _SENT_TWICE and now - before <= _TWICE_WITHIN_S:
            return
        self._came_at[number] = now
        first, self._signal = self._signal is None, number
        if number != signal.SIGINT:
            self._deadline = min(self._deadline, now + self._grace_s)
        self._interrupter.stop(f"interrupted by {number.name}", urgent=True)
        if not first:
            self._end("interrupted twice")

    def _end(self, why: str, with_or_without: str = "without") -> None:
        """End the process, unless the run has ended: what is left of it is quick."""
        if self._may_end:
            _say_unless_that_takes_time(f"asyncrl: {why}; ended {with_or_without} a summary")
            os._exit(self.exit_code)


def _done_in_time(save: Callable[[], object]) -> bool:
    """Call it in a thread, since what hangs may keep it; tell whether it was done in time."""
    done = threading.Event()

    def run() -> None:
        with suppress(Exception):  # the end that follows says that there is no summary
            save()
            done.set()

    thread = threading.Thread(target=run, daemon=True)
    with suppress(RuntimeError):  # no thread can be started
        thread.start()
        thread.join(_SUMMARY_S)
    return done.is_set()


def _say_unless_that_takes_time(sentence: str) -> None:
    """Write a line to where errors go, in a thread that must not wait for whoever reads it."""
    writable = select.poll()
    writable.register(_STDERR, select.POLLOUT)
    with suppress(OSError):  # nobody reads it any more
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            cursor = _SHOW_CURSOR if os.isatty(_STDERR) else ""
            os.write(_STDERR, f"{cursor}{sentence}\n".encode())


def raise_at_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt`, with their number, from now on.

    The process ends at the second one, or if it has not ended some seconds after the first, which
    native code may keep from the main thread. SIGUSR1, of which a command that is no run has no
    use, no longer ends it. `interrupting` decides otherwise for its block.
    """
    seen = Interrupted(Interrupter(), _COMMAND_GRACE_S, limit=f"{_COMMAND_GRACE_S:g} s")
    _listen(seen)
    for number in _heard():
        signal.signal(number, _raise)
    signal.signal(signal.SIGUSR1, _leave_it_to_the_thread)


@contextmanager
def interrupting(interrupter: Interrupter, grace_s: float = 0.0) -> Iterator[Interrupted]:
    """Let SIGINT, SIGTERM and SIGHUP stop a run, and SIGUSR1 save it, while the block runs.

    Of the block there is nothing left `grace_s` seconds after a SIGTERM or SIGHUP; 0 is off. After
    the block, `exit_code` tells of every signal that came in it.
    """
    seen = Interrupted(interrupter, grace_s)

    def on_save(number: int, frame: FrameType | None) -> None:
        interrupter.save_requested = True
        if callable(others):
            others(number, frame)

    with _listening(seen):
        before = {number: signal.signal(number, _leave_it_to_the_thread) for number in _heard()}
        others = signal.signal(signal.SIGUSR1, on_save)
        try:
            yield seen
        finally:
            seen.be_over()
            signal.signal(signal.SIGUSR1, others)
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _listening(seen: Interrupted) -> Iterator[None]:
    heard, told, before, thread = _listen(seen)
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


def _listen(seen: Interrupted) -> tuple[int, int, int, threading.Thread]:
    """Start the thread; return its pipe's ends, whom signals were told to before, and itself."""
    heard, told = os.pipe()
    os.set_blocking(told, False)  # it is written by the signal itself
    thread = threading.Thread(
        target=seen.listen, args=(heard,), name="asyncrl-signals", daemon=True
    )
    start_thread(thread)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _told.add(told)
    return heard, told, before, thread


def _raise(number: int, _: FrameType | None) -> None:
    for other in _SIGNALS:  # what ends because of the first signal is not disturbed by another
        if signal.getsignal(other) is _raise:
            signal.signal(other, _leave_it_to_the_thread)
    raise KeyboardInterrupt(signal.Signals(number))


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing; without a handler, Python would not tell the thread."""


def _be_deaf() -> None:
    """Keep what a forked child is told from its parent: they share the pipe.

    Where signals raise, the child answers them as other processes do: environments fork workers
    that are ended by SIGTERM.
    """
    if _told:
        _told.clear()
        signal.set_wakeup_fd(_DEAF)
    for number in _SIGNALS:
        if signal.getsignal(number) is _raise:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)


os.register_at_fork(after_in_child=_be_deaf)


def end_at_signals() -> None:
    """Let signals end the program at once, in silence, where nothing is left to do but to end.

    Python takes some time for that, and shows a traceback of what they interrupt.
    """
    for number in _heard():
        signal.signal(number, lambda number, _: os._exit(128 + number))


def _heard() -> list[signal.Signals]:
    # `nohup` has SIGHUP ignored, and wants that to stay so.
    return [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
