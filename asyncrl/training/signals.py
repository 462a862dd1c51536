"""Signals of a scheduler in a script that trains, if the script asks for it.

The command line handles signals by itself, in `cli/signals.py`, with a grace period.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter

_SAME_WITHIN_S = 1.0
"""Within this time several SIGTERM count as one: schedulers, and what they start, forward it to
processes that have received it."""


@contextmanager
def answering_signals(interrupter: Interrupter, answers: bool) -> Iterator[None]:
    """Within the block SIGTERM ends the run, and SIGUSR1 saves a checkpoint; then as before.

    A second SIGTERM waits for nothing more: no actor, no checkpoint.
    """
    if not answers:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "signals=True handles signals, which Python allows in the main thread only; call this "
            "function there, or leave signals off"
        )

    first_at_s = math.inf

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal first_at_s
        if number == signal.SIGUSR1:
            interrupter.save_requested = True
            return
        now_s = time.monotonic()
        # Not at the first one, although the run may have been about to end by itself.
        interrupter.hurry |= now_s - first_at_s > _SAME_WITHIN_S
        first_at_s = min(first_at_s, now_s)
        interrupter.stop(f"interrupted by {signal.Signals(number).name}", urgent=True)

    before = {number: signal.signal(number, on_signal) for number in _ANSWERED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ANSWERED = (signal.SIGTERM, signal.SIGUSR1)
