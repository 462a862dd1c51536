"""Where a thread's time goes."""

from __future__ import annotations

from asyncrl.metrics.stopwatch import Stopwatch, shares_between


class Hand:
    """A stopwatch whose clock a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = Stopwatch(lambda: self.now)

    def lap(self, phase: str, seconds: float) -> None:
        self.now += seconds
        self.watch.lap(phase)


def test_take_returns_what_came_since_the_take_before() -> None:
    hand = Hand()
    hand.now = 150.0
    hand.watch.start()
    hand.lap("env", 1.0)
    assert hand.watch.totals() == {"env": 1.0}, "time before the start is charged to nothing"
    hand.watch.take()
    hand.lap("env", 1.0)
    hand.lap("send", 4.0)
    assert hand.watch.take() == {"env": (1.0, 1), "send": (4.0, 1)}


def test_shares_are_of_the_time_between() -> None:
    before, after = {"wait": 5.0, "opt": 1.0}, {"wait": 6.0, "opt": 3.0, "save": 1.0}
    assert shares_between(before, after) == {"wait": 0.25, "opt": 0.5, "save": 0.25}
    assert shares_between(after, after) == {"wait": 0.6, "opt": 0.3, "save": 0.1}
    assert shares_between({}, {}) == {}
