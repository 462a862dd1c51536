"""What is told to end has so long to do so, whatever hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from asyncrl.cli import signals
from asyncrl.cli.signals import Countdown, interrupting, reserve_s
from asyncrl.core.interrupter import Interrupter
from tests.support.helpers import wait_until


class Calls(list[str]):
    """What was called, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def note(self, name: str) -> None:
        self.at.append(time.monotonic())
        self.append(name)

    def grace(self, grace_s: float) -> Countdown:
        giving_up = grace_s - reserve_s(grace_s), lambda: self.note("give up")
        return Countdown(giving_up, (grace_s, lambda: self.note("end")))


@pytest.mark.parametrize(("grace_s", "reserved_s"), [(0.2, 0.05), (8.0, 2.0), (600.0, 2.0)])
def test_some_of_the_grace_is_kept_for_giving_up(grace_s: float, reserved_s: float) -> None:
    assert reserve_s(grace_s) == pytest.approx(reserved_s)


@pytest.mark.fault("F14")
def test_grace_counts_from_the_first_signal_on() -> None:
    calls = Calls()
    with calls.grace(0.4) as grace:
        began = time.monotonic()
        for _ in range(100):
            grace.begin()
        wait_until(lambda: len(calls) == 2, 20, "both")
    assert calls == ["give up", "end"]
    assert calls.at[0] >= began + 0.3
    assert calls.at[1] >= began + 0.4


@pytest.mark.fault("F14")
def test_who_ends_in_time_is_left_alone() -> None:
    calls = Calls()
    threads = threading.active_count()
    with Countdown() as grace:
        grace.begin()
    with calls.grace(600.0) as grace:
        grace.begin()
        assert threading.active_count() == threads + 1
    with calls.grace(600.0):
        pass
    assert threading.active_count() == threads
    assert not calls


@pytest.mark.fault("F14")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run_is_gone_when_its_grace_is_over(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(signals, "os", SimpleNamespace(**{**vars(os), "_exit": codes.append}))
    interrupter = Interrupter()

    def hang_when_told_to_end() -> None:
        os.kill(os.getpid(), number)
        wait_until(lambda: False, 20, "nothing, as an end that hangs")

    with interrupting(interrupter, 0.4) as interrupted:
        with pytest.raises(KeyboardInterrupt):
            hang_when_told_to_end()
        assert interrupter.reason == f"interrupted by {number.name}"
        why = f"not done within the grace after {number.name}, see --grace-s"
        assert interrupted.hurry == f"{why}; ended without a summary"
        wait_until(lambda: codes, 20, "the end")
    assert codes == [128 + number]


@pytest.mark.fault("F12")
def test_whoever_presses_ctrl_c_decides_when_to_press_it_again() -> None:
    with interrupting(Interrupter(), 0.1) as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert not threading.Event().wait(0.3), "nobody interrupts"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupted.hurry == "interrupted twice; ended without a summary"
