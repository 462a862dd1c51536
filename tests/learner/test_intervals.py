"""Intervals are never lost, never repeated, and off where they are 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.learner.progress import Every, EverySeconds


def test_a_jump_over_several_multiples_is_due_once_and_then_at_the_next() -> None:
    every = Every(30)
    assert [count for count in (10, 29, 100, 110, 119, 120, 121) if every.due(count)] == [100, 120]


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


@given(interval=st.integers(1, 20), last=st.integers(0, 300))
def test_counting_by_ones_is_due_at_every_multiple(interval: int, last: int) -> None:
    every = Every(interval)
    dues = [count for count in range(last + 1) if every.due(count)]
    assert dues == list(range(interval, last + 1, interval))


def test_a_resumed_run_does_not_repeat_the_interval_it_had_done() -> None:
    every = Every(100, start=1000)
    assert not every.due(1000)
    assert every.due(1100)


def test_a_count_that_goes_back_is_not_due() -> None:
    every = Every(10)
    assert every.due(25)
    assert not every.due(20)
    assert not every.due(29)
    assert every.due(30)


def test_an_interval_of_zero_is_off() -> None:
    assert not Every(0).due(10**12)
    assert not EverySeconds(0, 5.0).due(1e12)


@pytest.mark.parametrize("interval", [-1, 2.5, True, "10"])
def test_an_interval_that_cannot_be_is_refused_by_value(interval: object) -> None:
    with pytest.raises(ConfigError, match=f"interval must be a whole number.*{interval!r}"):
        Every(interval)  # type: ignore[arg-type]


@pytest.mark.parametrize("interval_s", [-0.1, float("nan"), float("inf")])
def test_seconds_that_cannot_be_are_refused_by_value(interval_s: float) -> None:
    with pytest.raises(ConfigError, match=f"interval_s.*got {interval_s!r}"):
        EverySeconds(interval_s, 0.0)


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
