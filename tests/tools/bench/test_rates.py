"""Rates of repeated work and growth of counts, on a clock of the test's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from asyncrl.core.errors import AsyncRLError
from asyncrl.tools.bench import measure as rates
from asyncrl.tools.bench.measure import Repeating, growth_rate, wait_until_running


class Clock:
    """Time passes only when the code under test sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock()
    fake = SimpleNamespace(
        sleep=hand.pass_s, monotonic=lambda: hand.now_s, perf_counter=lambda: hand.now_s
    )
    monkeypatch.setattr(rates, "time", fake)
    return hand


def test_repeated_work_is_counted_per_second_after_one_warm_up(clock: Clock) -> None:
    def work() -> int:
        clock.pass_s(0.1 if clock.now_s < 1.0 else 0.01)
        return 3

    repeating = Repeating(work, warm_up_seconds=1.0)
    for ends in (2.0, 3.0):
        assert repeating.rate(1.0) == pytest.approx(3 / 0.01)
        assert clock.now_s == pytest.approx(ends, abs=0.2)


@pytest.mark.parametrize(("begins", "rate", "ends"), [(4.0, 1 / 3.9, 4.0), (99.0, 0.0, 11.1)])
def test_measurement_lasts_until_something_is_counted_or_hopeless(
    begins: float, rate: float, ends: float, clock: Clock
) -> None:
    def work() -> int:
        clock.pass_s(0.01)
        return int(clock.now_s > begins)

    assert Repeating(work, warm_up_seconds=0.1).rate(1.0) == pytest.approx(rate, rel=0.02)
    assert clock.now_s == pytest.approx(ends, abs=0.2)


@pytest.mark.parametrize(("every_s", "lump"), [(1.5, 600), (0.02, 8)])
def test_growth_is_measured_from_lump_to_lump(every_s: float, lump: int, clock: Clock) -> None:
    """Both are 400 a second; 4 s hold two of the large lumps or three."""
    rate = growth_rate(lambda: (lump * int(clock.now_s / every_s), 1), 4.0)
    assert rate == pytest.approx(400.0, rel=0.02)


@pytest.mark.usefixtures("clock")
def test_a_count_that_stands_still_ends_the_measurement() -> None:
    with pytest.raises(AsyncRLError, match="nothing was counted in 120 s"):
        growth_rate(lambda: (7, 1), 1.0)


def test_processes_that_have_started_are_waited_for(clock: Clock) -> None:
    wait_until_running(lambda: (0, 2 if clock.now_s > 10 else 1), 2, "actors")
    assert clock.now_s == pytest.approx(10.0, abs=0.1)


@pytest.mark.usefixtures("clock")
def test_processes_that_never_start_end_the_measurement() -> None:
    with pytest.raises(AsyncRLError, match="only 1 of 2 bare loops started within 120 s"):
        wait_until_running(lambda: (0, 1), 2, "bare loops")
