"""Signals of a command: the first one stops it, the second ends the process immediately.

Signals are handled from the first moment: the first raises `KeyboardInterrupt` in the main thread.
A run, once it has been built, stops and saves instead (`run/signals.py`). Without handlers, a
process with number 1, as in a container, would not end at all: the system ignores signals for it by
default.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from asyncrl.core.interrupter import Interrupter
from asyncrl.run.signals import SIGNALS, Interrupted, do_nothing, handled, listen_in_thread

_GRACE_S = 8.0
"""Grace period of a command that is not a run: `docker stop` kills after 10 s."""

_raised: list[signal.Signals] = []
"""The signal for which `KeyboardInterrupt` was raised, if any."""


def raise_at_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt`, with their number, from now on.

    The process ends at the second signal, or some seconds after the first if native code keeps the
    main thread from raising. SIGUSR1, which only runs use, no longer ends the process.
    `interrupting` replaces this for its block.
    """
    seen = Interrupted(Interrupter(), _GRACE_S, limit=f"{_GRACE_S:g} s")
    listen_in_thread(seen)
    for number in handled():
        signal.signal(number, _raise)
    signal.signal(signal.SIGUSR1, do_nothing)


def _raise(number: int, _: FrameType | None) -> None:
    for other in SIGNALS:  # a second signal must not disturb what ends because of the first
        if signal.getsignal(other) is _raise:
            signal.signal(other, do_nothing)
    _raised.append(signal.Signals(number))
    raise KeyboardInterrupt(_raised[-1])


def raise_again() -> None:
    """Raise the `KeyboardInterrupt` of a signal again if there was one.

    Native code that imports a module may turn it into an `ImportError`, or drop it.
    """
    if _raised:
        raise KeyboardInterrupt(_raised[-1])


def _restore_in_child() -> None:
    """Give a forked child the default handlers: environments fork workers that SIGTERM ends."""
    for number in SIGNALS:
        if signal.getsignal(number) is _raise:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)


os.register_at_fork(after_in_child=_restore_in_child)


def end_at_signals() -> None:
    """Make signals end the program immediately and without a traceback, when all work is done.

    Python's own exit takes some time, and a signal in it would print a traceback.
    """
    for number in handled():
        signal.signal(number, lambda number, _: os._exit(128 + number))
