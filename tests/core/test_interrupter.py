"""A run ends once, for the first reason, and no error is lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, start_thread
from tests.support.helpers import no_thread

_SOON_S = 10.0


@pytest.fixture
def usr1() -> Iterator[Any]:
    def install(handler: Any) -> None:
        signal.signal(signal.SIGUSR1, handler)

    old = signal.getsignal(signal.SIGUSR1)
    yield install
    signal.signal(signal.SIGUSR1, old)


def test_the_first_error_is_raised_with_the_later_ones_in_its_notes() -> None:
    interrupter = Interrupter()
    interrupter.stop("a bound was reached")
    assert not interrupter.urgent
    errors = [ValueError("cause"), *(KeyError(number) for number in range(29))]
    for error in errors:
        interrupter.fail(error)
    assert interrupter.urgent
    assert interrupter.reason == "a bound was reached"
    assert interrupter.errors == tuple(errors)
    for _ in range(2):  # a second call adds no second note
        with pytest.raises(ValueError, match="cause") as caught:
            interrupter.raise_if_failed()
        assert "KeyError: 0" in caught.value.__notes__[0]
        assert len(caught.value.__notes__) == 9
    assert caught.value.__notes__[-1] == "21 more failures followed."


@pytest.mark.fault("F10")
def test_steps_continue_after_an_error_that_cannot_say_what_it_is() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise SystemExit("no words")

    def fail() -> None:
        raise Speechless

    interrupter = Interrupter()
    taken: list[int] = []
    interrupter.take_steps(fail, lambda: taken.append(2))
    assert taken == [2]
    assert interrupter.reason.partition(" (at ")[0] == "Speechless"
    with pytest.raises(Speechless):
        interrupter.raise_if_failed()


def test_all_waiters_wake() -> None:
    interrupter = Interrupter()
    with ThreadPoolExecutor(8) as pool:
        woken = [pool.submit(interrupter.wait, _SOON_S) for _ in range(8)]
        interrupter.stop("enough")
        assert [one.result(_SOON_S) for one in woken] == [True] * 8
    assert interrupter.wait(0.0) is True


def test_a_time_that_is_over_before_the_wait_begins_is_no_endless_wait() -> None:
    for timeout_s in (-1.0, *[1e-6] * 1000):
        assert not Interrupter().wait(timeout_s)


def test_a_signal_handler_wakes_the_main_thread_that_waits(usr1: Any) -> None:
    waits = threading.Event()

    class Watched(Interrupter):
        def wait(self, timeout_s: float) -> bool:
            waits.set()
            return super().wait(timeout_s)

    interrupter = Watched()
    usr1(lambda *_: interrupter.stop("a signal", urgent=True))

    def send() -> None:
        assert waits.wait(_SOON_S)
        # Again and again: one that comes just before the lock is acquired is seen after the wait.
        while not interrupter.is_set:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        assert interrupter.wait(60 * _SOON_S) is True
        sent.result(_SOON_S)
    assert interrupter.reason == "a signal"


def test_a_handler_may_interrupt_every_line_of_every_method() -> None:
    """What a signal can do, done at each line: call `stop` from inside the other methods."""
    lines = 0

    def body(interrupter: Interrupter) -> None:
        interrupter.wait(0.0)
        interrupter.stop("outer")
        interrupter.fail(ValueError("outer"))
        interrupter.wait(_SOON_S)

    def run(interrupt_at: int) -> None:
        nonlocal lines
        interrupter, lines = Interrupter(), 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal lines
            ours = frame.f_code.co_filename.endswith(("/interrupter.py", "/threading.py"))
            if ours and event == "line":
                lines += 1
                if lines == interrupt_at:
                    interrupter.stop("inner")
            return trace

        former = sys.gettrace()
        sys.settrace(trace)
        try:
            body(interrupter)
        finally:
            sys.settrace(former)
        assert interrupter.reason in {"inner", "outer"}
        assert isinstance(interrupter.error, ValueError)

    run(0)
    total = lines
    assert total > 10
    for i in range(1, total + 1):
        run(i)


@pytest.mark.fault("F10")
def test_a_thread_forwards_what_it_raises() -> None:
    interrupter = Interrupter()

    def body() -> None:
        raise SystemExit("even this")

    thread = CrashForwardingThread(interrupter, body, name="asyncrl-test")
    thread.start()
    assert interrupter.wait(_SOON_S)
    thread.join(_SOON_S)
    assert isinstance(interrupter.error, SystemExit)


def test_a_thread_that_the_system_refuses_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    thread = CrashForwardingThread(Interrupter(), lambda: None, "asyncrl-test")
    with pytest.raises(RuntimeError, match="can't start new thread") as refused:
        start_thread(thread)
    (note,) = refused.value.__notes__
    assert note.startswith("asyncrl: for thread asyncrl-test; raise the limit on processes")
