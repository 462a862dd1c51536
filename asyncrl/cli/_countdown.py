"""What happens some time after the end has begun, whatever hangs.

Schedulers send SIGTERM, and SIGKILL some time later, which leaves no word of what happened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self


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
