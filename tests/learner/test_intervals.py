"""Intervals are never lost, never repeated, and off where they are 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.learner.progress import Every, EverySeconds


@pytest.mark.behaviour(number=20)
@given(
    interval=st.integers(1, 50),
    start=st.integers(0, 200),
    steps=st.lists(st.integers(0, 120), max_size=60),
)
def test_it_is_due_exactly_when_a_multiple_was_crossed(
    interval: int, start: int, steps: list[int]
) -> None:
    every = Every(interval, start=start)
    count = start
    for step in steps:
        before, count = count, count + step
        assert every.due(count) is (count // interval > before // interval)
        assert not every.due(count), "said twice"


def test_an_interval_of_zero_is_off() -> None:
    assert not Every(0).due(10**12)
    assert not EverySeconds(0, 5.0).due(1e12)


def test_seconds_keep_their_grid_after_a_late_check() -> None:
    every = EverySeconds(2.0, 100.0)
    times = (100.0, 101.9, 102.3, 103.0, 104.1, 111.0, 111.5, 112.0, 113.9, 114.0)
    assert [now for now in times if every.due(now)] == [102.3, 104.1, 111.0, 112.0, 114.0]


@given(
    interval_s=st.floats(1e-9, 1e3),
    start=st.floats(0, 1e9),
    steps=st.lists(st.floats(0, 1e4), max_size=40),
)
def test_seconds_are_never_due_twice_at_one_time_nor_later_than_an_interval(
    interval_s: float, start: float, steps: list[float]
) -> None:
    every = EverySeconds(interval_s, start)
    now = last = start
    for step in steps:
        now += step
        if every.due(now):
            last = now
        if now + interval_s > now:
            assert not every.due(now), "said twice"
        assert now - last <= interval_s * 1.001 + now * 1e-15, "never said"
