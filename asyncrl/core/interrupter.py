"""Ends a run, or requests a checkpoint: a stop with a reason, a failure with its error.

Ends nothing itself: loops check `is_set`, and their caller calls `raise_if_failed` at the end.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from asyncrl.core.errors import describe_error

_MAX_NOTES = 8
_LOOK_S = 0.1


class Interrupter:
    """One per run, shared by all its threads, its signal handlers and the user.

    The first reason and the first error are kept; later errors are added to `errors`.
    """

    # A signal handler runs in the main thread, between any two of its instructions, so it must not
    # need a lock that the main thread may hold. threading.Event does: `set` in the handler would
    # wait forever for the `wait` that it interrupted. So nothing here waits for a lock but `wait`:
    # list.append is atomic, and a lock is released without waiting. Closed means "not set"; every
    # waiter that gets through opens it for the next. (queue.SimpleQueue could serve, but in CPython
    # 3.11 its `get` with a timeout waits forever if the time is over before the wait begins.)

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._errors: list[BaseException] = []
        self._urgent = False
        self.hurry = False
        """Whether the end was interrupted, too: wait for nothing."""
        self.save_requested = False
        """Set it to save a checkpoint soon; the run continues."""
        self._noted = 0
        self._gate = threading.Lock()
        self._gate.acquire()

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """End the run normally; `urgent` means that the end must not take long.

        May be called from anywhere, including signal handlers, any number of times.
        """
        if urgent:
            self._urgent = True
        self._set(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with an error; `raise_if_failed` raises it."""
        # Not at a first Ctrl-C, although the run may have been about to end by itself.
        self.hurry |= self.urgent and isinstance(error, KeyboardInterrupt)
        if not any(error is known for known in self._errors):
            self._errors.append(error)
        self._set(describe_error(error))

    def take_steps(self, *steps: Callable[[], object]) -> None:
        """Call each of these steps, whether or not earlier ones failed; keep their exceptions."""
        for step in steps:
            try:
                step()
            except BaseException as error:
                self.fail(error)

    @property
    def is_set(self) -> bool:
        """Whether the run must end."""
        return bool(self._reasons)

    @property
    def urgent(self) -> bool:
        """Whether it must end quickly: after a failure, or on request."""
        return self._urgent or bool(self._errors)

    @property
    def reason(self) -> str | None:
        """Why the run ends, from the first call of `stop`; None while it continues."""
        return self._reasons[0] if self._reasons else None

    @property
    def error(self) -> BaseException | None:
        """The first error."""
        return self._errors[0] if self._errors else None

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """All errors in order of time."""
        return tuple(self._errors)

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the end of the run; return whether it must end."""
        if self.is_set:
            return True
        if not self._gate.acquire(timeout=max(timeout_s, 0.0)):
            return self.is_set
        self._open()
        return True

    def raise_if_failed(self) -> None:
        """Raise the first error, with later errors as its notes."""
        errors = self.errors
        if not errors:
            return
        first, later = errors[0], errors[1:]
        for error in later[self._noted : _MAX_NOTES]:
            text = "".join(traceback.format_exception(error)).rstrip()
            first.add_note(f"Another part of the run failed after that:\n{text}")
        if self._noted < _MAX_NOTES < len(later):
            first.add_note(f"{len(later) - _MAX_NOTES} more failures followed.")
        self._noted = len(later)
        raise first

    def _set(self, reason: str) -> None:
        self._reasons.append(reason)
        self._open()

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open
            self._gate.release()


def waited(interrupter: Interrupter, wait: Callable[[float], bool], timeout_s: float) -> bool:
    """Repeat a wait that takes a timeout and returns whether it is over, and return that.

    It ends without that after `timeout_s`, or soon after `hurry` is set.
    """
    deadline = time.monotonic() + timeout_s
    while not (over := wait(min(_LOOK_S, timeout_s))):
        if interrupter.hurry or time.monotonic() >= deadline:
            break
    return over


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; if the system refuses one, the `RuntimeError` says what to do."""
    try:
        thread.start()
    except RuntimeError as error:
        error.add_note(
            f"asyncrl: for thread {thread.name}; raise the limit on processes and threads, "
            "ulimit -u or the container's pids limit, or run fewer actors"
        )
        raise


class CrashForwardingThread(threading.Thread):
    """A thread whose failure ends the run.

    A daemon, so that a stuck thread cannot keep a failed process alive. Its owner still joins it.
    """

    def __init__(self, interrupter: Interrupter, target: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._interrupter = interrupter
        self._body = target
        self._ended = threading.Event()

    def run(self) -> None:
        """Run the target; pass any exception to the interrupter."""
        try:
            self._interrupter.take_steps(self._body)
        finally:
            self._ended.set()

    def has_ended(self, timeout_s: float) -> bool:
        """Wait until the target has ended; return False after the timeout.

        A signal may interrupt this. After an interrupted `join`, Python 3.11 reports a running
        thread as ended.
        """
        return self._ended.wait(timeout_s)
