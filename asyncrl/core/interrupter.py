"""How anything may end a run, or have it saved: a stop with a reason, a failure with its error.

Ends nothing itself: loops ask `is_set`, and whoever runs them calls `raise_if_failed` at the end.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue

from asyncrl.core.errors import describe_error

_MAX_NOTES = 8


class Interrupter:
    """One per run, shared by all its threads, its signal handlers and the user.

    The first reason and the first error stay; later errors are kept beside it in `errors`.
    """

    # A signal handler runs in the main thread, between any two of its instructions, so it must
    # never need a lock that the main thread may hold at that moment. threading.Event does: `set`
    # in the handler would wait for ever for the `wait` that it interrupted. So there is no lock
    # here: list.append is atomic, and SimpleQueue.put is documented to be reentrant. One token
    # in the queue means "set", and every waiter that takes it puts it back for the next.

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._errors: list[BaseException] = []
        self._urgent = False
        self.hurry = False
        """Whether somebody has interrupted the end as well, and nothing is to be waited for."""
        self.save_requested = False
        """Set it to have a checkpoint saved soon; the run goes on."""
        self._noted = 0
        self._token: SimpleQueue[None] = SimpleQueue()

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """End the run well; `urgent` says that its end must not take long.

        May be called from anywhere, signal handlers included, any number of times.
        """
        if urgent:
            self._urgent = True
        self._set(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with an error, which `raise_if_failed` will raise."""
        self.hurry |= self.is_set and isinstance(error, KeyboardInterrupt)
        if not any(error is known for known in self._errors):
            self._errors.append(error)
        self._set(describe_error(error))

    def take_steps(self, *steps: Callable[[], object]) -> None:
        """Take each of these steps, whatever became of the one before; keep what they raise."""
        for step in steps:
            try:
                step()
            except BaseException as error:
                self.fail(error)

    @property
    def is_set(self) -> bool:
        """Whether the run is to end."""
        return bool(self._reasons)

    @property
    def urgent(self) -> bool:
        """Whether it is to end without taking time for niceties: after a failure, or if told."""
        return self._urgent or bool(self._errors)

    @property
    def reason(self) -> str | None:
        """Why the run ends, as the first who ended it said; None while it goes on."""
        return self._reasons[0] if self._reasons else None

    @property
    def error(self) -> BaseException | None:
        """The first error."""
        return self._errors[0] if self._errors else None

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """All errors, in the order in which they came."""
        return tuple(self._errors)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run is to end, for at most `timeout_s`; return whether it is."""
        if self.is_set:
            return True
        try:
            self._token.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return self.is_set
        self._token.put(None)
        return True

    def raise_if_failed(self) -> None:
        """Raise the first error, with those that came after it as its notes."""
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
        self._token.put(None)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; the `RuntimeError` where the system refuses one says what to do."""
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

    A daemon, so that one which hangs cannot keep a failed process alive; whoever starts it joins
    it all the same.
    """

    def __init__(self, interrupter: Interrupter, target: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._interrupter = interrupter
        self._body = target
        self._ended = threading.Event()

    def run(self) -> None:
        """Run the target; hand whatever it raises to the interrupter."""
        try:
            self._interrupter.take_steps(self._body)
        finally:
            self._ended.set()

    def has_ended(self, timeout_s: float) -> bool:
        """Wait until the target has ended; False if it has not in time.

        A signal may interrupt this. After a `join` that was interrupted, Python 3.11 takes a
        thread that goes on for one that has ended.
        """
        return self._ended.wait(timeout_s)
