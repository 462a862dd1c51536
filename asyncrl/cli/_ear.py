"""Hears signals in a thread, also while the main thread is in native code.

Python answers signals in the main thread, between two of its instructions. During a gradient step
they wait, and of two of a kind that wait one is answered. The thread needs the interpreter's lock,
which such code lets go of.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
