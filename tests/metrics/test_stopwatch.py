"""Where a thread's time goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncrl.metrics.stopwatch import Stopwatch, ms_per_lap, shares_between


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_time_before_start_is_charged_to_nothing(clock: HandClock) -> None:
    watch = Stopwatch(clock)
    clock.now = 150.0
    watch.start()
    clock.now = 151.0
    watch.lap("opt")
    assert watch.totals() == {"opt": 1.0}


def test_take_returns_what_came_since_the_take_before(clock: HandClock) -> None:
    watch = Stopwatch(clock)
    clock.now += 2.0
    watch.lap("env")
    watch.take()
    clock.now += 1.0
    watch.lap("env")
    clock.now += 4.0
    watch.lap("send")
    assert watch.take() == {"env": (1.0, 1), "send": (4.0, 1)}


def test_shares_are_of_the_time_between() -> None:
    before, after = {"wait": 5.0, "opt": 1.0}, {"wait": 6.0, "opt": 3.0, "save": 1.0}
    assert shares_between(before, after) == {"wait": 0.25, "opt": 0.5, "save": 0.25}
    assert shares_between(after, after) == {"wait": 0.6, "opt": 0.3, "save": 0.1}
    assert shares_between({}, {}) == {}


def test_lap_during_a_take_by_another_thread_is_not_lost(clock: HandClock) -> None:
    """Between `take`'s copy and its return, the thread that is timed continues."""
    watch = Stopwatch(clock)
    clock.now += 1.0
    watch.lap("recv")
    first = _take_while(watch, lambda: _lap(watch, clock, "recv"))
    second = watch.take()
    assert first["recv"][0] + second["recv"][0] == 2.0
    assert first["recv"][1] + second["recv"][1] == 2


def _lap(watch: Stopwatch, clock: HandClock, phase: str) -> None:
    clock.now += 1.0
    watch.lap(phase)


def _take_while(watch: Stopwatch, interfere: Callable[[], None]) -> dict[str, tuple[float, int]]:
    class Interfering(dict[str, tuple[float, int]]):
        def copy(self) -> dict[str, tuple[float, int]]:
            taken = dict(self)
            interfere()
            return taken

    watch._sums = Interfering(watch._sums)
    return watch.take()


def test_ms_per_lap_is_the_average() -> None:
    laps = {"opt": (3.0, 2), "save": (0.0, 0), "wait": (1.0, 1)}
    assert ms_per_lap(laps, ("opt", "save", "eval")) == {"ms/opt": 1500.0}
