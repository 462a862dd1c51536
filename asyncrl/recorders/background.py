"""Runs recorders in a background thread, so that a slow one never blocks training.

Keeps no numbers itself; knows nothing about files, terminals or services.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import start_thread
from asyncrl.core.recorder import Record, Recorder, ResumableRecorder

logger = logging.getLogger(__name__)

_LAST_CLOSE_S = 1.0


class BackgroundRecorder:
    """Forwards everything to other recorders in one thread, and never blocks its caller.

    If they are too slow, the oldest pending record is dropped. `record/dropped` in each later
    record counts the dropped ones. A recorder that raises is closed and disabled, with a warning;
    the other recorders and the run continue. When a run ends normally no pending record is lost:
    `close` writes them first, for up to half of `close_timeout_s`, and then closes all recorders.
    If one of them hangs, `close` abandons it and closes the rest itself.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder],
        *,
        max_pending: int = 1000,
        close_timeout_s: float = 10.0,
    ) -> None:
        if max_pending < 1:
            raise ConfigError(f"max_pending must be at least 1, got {max_pending}")
        self._recorders = list(recorders)
        self.name = ", ".join(map(_name, recorders))
        """The classes of the recorders."""

        self._close_timeout_s = close_timeout_s
        self._config: Mapping[str, object] = {}
        self._changed = threading.Condition()
        # All that follows is shared with the thread, and guarded by the condition.
        self._pending: deque[dict[str, float]] = deque(maxlen=max_pending)
        self._dropped = 0
        self._drain_until: float | None = None
        self._close_until = 0.0
        self._has_closed = False
        self._failed = False
        self._writes = False
        """Whether a record is being written."""

        self._busy: Recorder | None = None
        self._slow = ""
        """Name of the recorder that was busy when the time for the last records was over."""

        self._abandoned = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="asyncrl-recorder", daemon=True)

    @property
    def failure(self) -> BaseException | None:
        """The exception of the first recorder that failed; None if all work."""
        return self._failure

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        """Forward it to the recorders that support resuming."""
        for recorder in self._recorders:
            if isinstance(recorder, ResumableRecorder):
                recorder.resume_at(env_steps=env_steps, opt_steps=opt_steps)

    def start(self, config: Mapping[str, object]) -> None:
        """Start the thread, which starts the recorders."""
        self._config = dict(config)
        start_thread(self._thread)

    def write(self, record: Record) -> None:
        """Copy the record and queue it for writing."""
        copy = dict(record)
        with self._changed:
            if self._drain_until is not None:
                raise ValueError("write was called before start or after close")
            self._dropped += len(self._pending) == self._pending.maxlen
            self._pending.append(copy)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are written; return False if the time was too short."""
        until = time.monotonic() + timeout_s
        with self._changed:
            written = self._changed.wait_for(
                lambda: not (self._pending or self._writes) or not self._thread.is_alive(),
                timeout_s,
            )
        others = [one for one in self._recorders if isinstance(one, BackgroundRecorder)]
        return written and all(one.flush(max(0.0, until - time.monotonic())) for one in others)

    def close(self, *, failed: bool) -> None:
        """Write pending records, close all recorders and end the thread; has a timeout."""
        self.begin_to_close(failed=failed)
        if self._has_closed:
            return
        self._has_closed = True
        if self._thread.ident is None:
            self._for_each(_closing(failed))
            return
        self._thread.join(max(0.0, self._close_until - time.monotonic()))
        if self._thread.is_alive():
            self._abandon()

    def begin_to_close(self, *, failed: bool) -> None:
        """Let the thread write what is pending and close, for `close` to wait for it."""
        with self._changed:
            if self._drain_until is None:
                now = time.monotonic()
                self._close_until = now + self._close_timeout_s
                self._drain_until = now + self._close_timeout_s / 2
                self._failed = failed
                self._changed.notify_all()

    def _run(self) -> None:
        self._for_each(lambda recorder: recorder.start(self._config))
        while (record := self._next()) is not None:
            self._for_each(_writing(record))
            with self._changed:
                self._writes = False
                self._changed.notify_all()
        for recorder in tuple(self._recorders):  # side by side: two that hang take no longer
            if isinstance(recorder, BackgroundRecorder):
                recorder.begin_to_close(failed=self._failed)
        self._for_each(_closing(self._failed))

    def _next(self) -> dict[str, float] | None:
        """Wait for a record. Return None after the last one, or at the close deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._drain_until is not None)
            if not self._pending:
                return None
            if self._drain_until is not None and time.monotonic() > self._drain_until:
                logger.warning(
                    "the last %d records were not written by %s: still busy %g s after the end; "
                    "record less often, or to a faster disk or server",
                    len(self._pending),
                    self._slow or self.name,
                    self._close_timeout_s / 2,
                )
                return None
            record = self._pending.popleft()
            self._writes = True
            if self._dropped:
                record["record/dropped"] = float(self._dropped)
            return record

    def _for_each(self, call: Callable[[Recorder], None]) -> None:
        for recorder in tuple(self._recorders):
            with self._changed:
                if self._abandoned:
                    return
                self._busy = recorder
            self._attempt(recorder, call)
            with self._changed:
                self._busy = None
                if self._drain_until is not None and time.monotonic() > self._drain_until:
                    self._slow = self._slow or _name(recorder)

    def _attempt(self, recorder: Recorder, call: Callable[[Recorder], None]) -> None:
        try:
            call(recorder)
        except BaseException as error:  # the thread must survive any recorder
            self._drop(recorder, error)

    def _drop(self, recorder: Recorder, error: BaseException) -> None:
        self._recorders.remove(recorder)
        self._failure = self._failure or error
        name = _name(recorder)
        logger.warning(
            "%s failed and is disabled; the run and other recorders continue. Fix what the "
            "traceback shows before the next run",
            name,
            exc_info=error,
        )
        try:
            recorder.close(failed=True)
        except BaseException:  # the first failure has been logged
            logger.debug("%s failed again when it was closed", name, exc_info=True)

    def _abandon(self) -> None:
        """Close all recorders but the one that hangs; the thread stops using them."""
        with self._changed:
            self._abandoned = True
            stuck = self._busy
            waiting = len(self._pending)
        name = _name(stuck) if stuck else "a recorder"
        message = f"{name} hangs; abandoned after {self._close_timeout_s:g} s"
        logger.warning(
            "%s, with %d records not written; check the disk or the server that it writes to",
            message,
            waiting,
        )
        self._failure = self._failure or TimeoutError(message)
        for recorder in tuple(self._recorders):
            if recorder is not stuck:
                # Other recorders may hang on the same cause, such as a file server that is down.
                closing = threading.Thread(
                    target=self._attempt, args=(recorder, _closing(self._failed)), daemon=True
                )
                try:
                    start_thread(closing)
                except RuntimeError as error:
                    logger.warning("%s was not closed: %s", _name(recorder), error)
                else:
                    closing.join(_LAST_CLOSE_S)


def _name(recorder: Recorder) -> str:
    return recorder.name if isinstance(recorder, BackgroundRecorder) else type(recorder).__name__


def _writing(record: Record) -> Callable[[Recorder], None]:
    return lambda recorder: recorder.write(record)


def _closing(failed: bool) -> Callable[[Recorder], None]:
    return lambda recorder: recorder.close(failed=failed)
