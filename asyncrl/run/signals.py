"""Signals of a run: the first one ends it after a checkpoint, the second ends the process.

Senders of SIGTERM and SIGHUP kill what does not end soon, so the run has a grace period. SIGUSR1,
with which schedulers announce the end, saves a checkpoint, and the run continues.

One thread handles all signals. It receives each one immediately, even while the main thread is in
native code, and it can end the process if something hangs: actors end with their launcher, and if a
checkpoint is being written, the previous one remains.

A run answers signals only on request: the command line's do, and scripts that say so.
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

from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter, start_thread

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_OFTEN_REPEATED = (signal.SIGTERM, signal.SIGHUP)
_SAME_WITHIN_S = 1.0
"""Within this time, a repeated signal counts as one. A terminal that is closed sends SIGHUP, and so
does its shell; schedulers and the processes they start forward SIGTERM to processes that have
received it."""

_LONGEST_POLL_S = 3600.0
"""poll() takes milliseconds as a C int."""

_RESERVE_S = 1.0
"""How long before the end of the grace period the process exits, for actors to end."""

_SUMMARY_S = 0.5
"""Timeout for writing the summary, within the reserve."""

_STOP_BYTE = b"\0"
_STDERR = 2
_SHOW_CURSOR = "\x1b[?25h\n"  # and end the line in which a live view stopped

_write_ends: set[int] = set()
"""Write ends of the pipes that receive signals."""


class Interrupted:
    """Which signal was received, if any, and what it does."""

    def __init__(self, interrupter: Interrupter, grace_s: float, *, limit: str = "grace_s") -> None:
        """`limit` is the name of the grace period in messages."""
        self._interrupter = interrupter
        self._limit = limit
        self._grace_s = grace_s - min(grace_s / 4, _RESERVE_S) if grace_s else math.inf
        self._deadline = math.inf
        self._signal: signal.Signals | None = None
        self._came_at: dict[int, float] = {}
        self._may_end = True
        self.again = False
        """Whether a second signal has come."""
        self.save_summary: Callable[[], object] | None = None
        """Saves a summary when the grace period is over, even if the run hangs; has a timeout of
        0.5 s."""

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells do; 0 without a signal."""
        return 128 + self._signal if self._signal else 0

    def disarm(self) -> None:
        """Never end the process from now on: the run has ended."""
        self._may_end = False

    def listen(self, descriptor: int) -> None:
        """Handle each signal that arrives in a pipe, until the pipe says that the block is over."""
        pipe = select.poll()
        pipe.register(descriptor, select.POLLIN)
        while True:
            left_s = max(self._deadline - time.monotonic(), 0.0)
            if pipe.poll(1e3 * min(left_s, _LONGEST_POLL_S)):
                if not all(map(self._handle_byte, os.read(descriptor, 4096))):
                    return
            elif not left_s and self._signal:
                self._deadline = math.inf
                save, self.save_summary = self.save_summary, None
                is_saved = self._may_end and save is not None and _done_in_time(save)
                why = f"not done within {self._limit} after {self._signal.name}"
                self._end(why, "with" if is_saved else "without")

    def _handle_byte(self, number: int) -> bool:
        """Handle one byte of the pipe; return False if it says that the block is over."""
        if number in SIGNALS:
            self._on_signal(signal.Signals(number))
        return number > 0

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        before = self._came_at.get(number, -math.inf)
        if number in _OFTEN_REPEATED and now - before <= _SAME_WITHIN_S:
            return
        self._came_at[number] = now
        first, self._signal = self._signal is None, number
        if number != signal.SIGINT:
            self._deadline = min(self._deadline, now + self._grace_s)
        self._interrupter.stop(f"interrupted by {number.name}", urgent=True)
        if not first:
            self.again = True
            self._end("interrupted twice")

    def _end(self, why: str, with_or_without: str = "without") -> None:
        """End the process, unless the run has ended: the rest takes no time."""
        if self._may_end:
            _write_without_blocking(f"asyncrl: {why}; ended {with_or_without} a summary")
            os._exit(self.exit_code)


def _done_in_time(save: Callable[[], object]) -> bool:
    """Call `save` in a thread, since it may hang; return whether it finished in time."""
    done = threading.Event()

    def run() -> None:
        with suppress(Exception):  # the message that follows says that no summary was saved
            save()
            done.set()

    thread = threading.Thread(target=run, daemon=True)
    with suppress(RuntimeError):  # no thread can be started
        thread.start()
        thread.join(_SUMMARY_S)
    return done.is_set()


def _write_without_blocking(sentence: str) -> None:
    """Write a line to stderr if that does not block."""
    writable = select.poll()
    writable.register(_STDERR, select.POLLOUT)
    with suppress(OSError):  # stderr is closed
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            cursor = _SHOW_CURSOR if os.isatty(_STDERR) else ""
            os.write(_STDERR, f"{cursor}{sentence}\n".encode())


@contextmanager
def interrupting(interrupter: Interrupter, grace_s: float = 0.0) -> Iterator[Interrupted]:
    """Make SIGINT, SIGTERM and SIGHUP stop a run, and SIGUSR1 save it, while the block runs.

    The process ends at most `grace_s` seconds after SIGTERM or SIGHUP; 0 disables the limit. After
    the block, `exit_code` is that of the last signal received in it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "signals=True handles signals, which Python allows in the main thread only; call this "
            "function there, or leave signals off"
        )
    seen = Interrupted(interrupter, grace_s)

    def on_save(number: int, frame: FrameType | None) -> None:
        interrupter.save_requested = True
        if callable(others):
            others(number, frame)

    with _listening(seen):
        before = {number: signal.signal(number, do_nothing) for number in handled()}
        others = signal.signal(signal.SIGUSR1, on_save)
        try:
            yield seen
        finally:
            seen.disarm()
            signal.signal(signal.SIGUSR1, others)
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _listening(seen: Interrupted) -> Iterator[None]:
    read_end, write_end, before, thread = listen_in_thread(seen)
    try:
        yield
    finally:
        if write_end in _write_ends:  # otherwise this is a forked child
            _write_ends.discard(write_end)
            signal.set_wakeup_fd(before)
            os.write(write_end, _STOP_BYTE)
            thread.join()
        os.close(read_end)
        os.close(write_end)


def listen_in_thread(seen: Interrupted) -> tuple[int, int, int, threading.Thread]:
    """Start the thread; return its pipe's ends, the previous wakeup descriptor, and the thread."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # written by the signal handler
    thread = threading.Thread(
        target=seen.listen, args=(read_end,), name="asyncrl-signals", daemon=True
    )
    start_thread(thread)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _write_ends.add(write_end)
    return read_end, write_end, before, thread


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing. Without a handler, Python would not write the signal to the pipe."""


def handled() -> list[signal.Signals]:
    """Return the signals that end a run; not those that the process ignores, as `nohup` lets it."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def _restore_in_child() -> None:
    """Stop a forked child from writing its signals to the pipe, which it shares with its parent."""
    if _write_ends:
        _write_ends.clear()
        signal.set_wakeup_fd(-1)  # none


os.register_at_fork(after_in_child=_restore_in_child)
