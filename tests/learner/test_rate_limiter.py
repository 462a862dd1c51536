"""The limiter keeps its ratio, never deadlocks, and refuses settings that could."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.rate_limiter import RateLimiter, build_limiter


def take_turn(limiter: RateLimiter, message: int, batch: int, *, insert_first: bool) -> None:
    can_insert, can_sample = limiter.may_insert(message), limiter.may_sample(batch)
    assert can_insert or can_sample, "both would wait for each other"
    if can_insert and (insert_first or not can_sample):
        limiter.on_insert(message)
    else:
        limiter.on_sample(batch)


@pytest.mark.behaviour(number=27)
@given(
    ratio=st.sampled_from([0.25, 1.0, 8.0, 64.0]),
    min_size=st.integers(1, 500),
    message=st.integers(1, 300),
    batch=st.integers(1, 512),
    wide=st.just(0) | st.integers(1, 200),
    order=st.lists(st.booleans(), min_size=50, max_size=300),
)
def test_one_side_may_always_continue_and_the_ratio_is_kept(
    ratio: float, min_size: int, message: int, batch: int, wide: int, order: list[bool]
) -> None:
    config = RateLimiterConfig(samples_per_insert=ratio, min_size=min_size, band_transitions=wide)
    if wide and 2 * wide * ratio < message * ratio + batch:
        with pytest.raises(ConfigError, match="deadlock"):
            build_limiter(config, max_insert=message, batch_size=batch)
        return
    limiter = build_limiter(config, max_insert=message, batch_size=batch)
    band = wide * ratio or max(message * ratio + batch, 0.1 * ratio * min_size)
    for insert_first in order:
        take_turn(limiter, message, batch, insert_first=insert_first)
        if limiter.inserted >= min_size:
            ahead = ratio * (limiter.inserted - min_size) - limiter.sampled
            assert ahead <= band + ratio * message
            assert ahead >= -band


@given(
    before=st.sampled_from([(0.0, 100), (0.5, 100), (8.0, 1), (8.0, 100), (8.0, 100_000)]),
    after=st.sampled_from([(0.5, 100), (1.5, 100), (8.0, 100), (8.0, 1), (8.0, 150_000)]),
    inserted=st.integers(200_000, 10**9),
    message=st.integers(1, 300),
    batch=st.integers(1, 512),
)
def test_neither_side_waits_for_what_went_by_with_other_settings(
    before: tuple[float, int], after: tuple[float, int], inserted: int, message: int, batch: int
) -> None:
    def build(ratio: float, min_size: int) -> RateLimiter:
        config = RateLimiterConfig(samples_per_insert=ratio, min_size=min_size)
        return build_limiter(config, max_insert=message, batch_size=batch)

    old, limiter, again = build(*before), build(*after), build(*after)
    old.on_insert(inserted)
    old.on_sample(int((inserted - before[1]) * before[0]))
    limiter.resume_at(old.state())
    assert (limiter.inserted, limiter.sampled) == (old.inserted, old.sampled)
    if before == after:
        assert (limiter.room(), limiter.stock()) == (old.room(), old.stock())
    else:
        assert limiter.may_insert(message)
        assert limiter.may_sample(batch)
        assert limiter.room() == pytest.approx(limiter.stock())
    limiter.on_insert(message)
    again.resume_at(limiter.state())
    assert (again.room(), again.stock()) == (limiter.room(), limiter.stock())


@pytest.mark.behaviour(number=13)
def test_room_is_what_may_be_inserted_and_stock_what_may_be_sampled() -> None:
    limiter = build_limiter(
        RateLimiterConfig(samples_per_insert=2.0, min_size=100), max_insert=20, batch_size=10
    )
    full = limiter.room()
    while limiter.may_insert(1):
        assert limiter.may_sample(1) == (limiter.inserted >= 100)
        assert limiter.warm_up_left() == max(0, 100 - limiter.inserted)
        limiter.on_insert(1)
    assert limiter.inserted == full
    assert limiter.room() == 0
    stock = limiter.stock()
    while limiter.may_sample(10):
        limiter.on_sample(10)
    assert limiter.consumed() == pytest.approx(stock - limiter.stock())
    assert limiter.stock() < 5.0
    assert limiter.may_insert(int(limiter.room()))
    assert not limiter.may_insert(int(limiter.room()) + 1)


def test_zero_lets_both_sides_run() -> None:
    limiter = build_limiter(
        RateLimiterConfig(samples_per_insert=0.0, min_size=1), max_insert=1, batch_size=1
    )
    limiter.on_insert(1)
    limiter.on_sample(10**6)
    assert limiter.may_sample(64)
    assert limiter.may_insert(10**9)
    assert limiter.room() == limiter.stock() == float("inf")


@pytest.mark.parametrize(
    ("ratio", "band", "once", "names"),
    [
        (2.0, 1, False, "at least 75"),
        (1.0, 19, True, "deadlock.* 20"),
        (0.0, 0, True, "samples_per_insert must be 1"),
        (8.0, 0, True, "samples_per_insert must be 1"),
    ],
)
def test_refusal_names_what_works(ratio: float, band: int, once: bool, names: str) -> None:
    size = 10 if once else 100
    config = RateLimiterConfig(samples_per_insert=ratio, band_transitions=band)
    with pytest.raises(ConfigError, match=names):
        build_limiter(config, max_insert=size, batch_size=size, once=once)


@given(
    message=st.integers(1, 300),
    batch=st.integers(1, 512),
    band=st.integers(0, 500),
    order=st.lists(st.booleans(), min_size=50, max_size=300),
)
def test_what_is_sampled_once_was_inserted_before(
    message: int, batch: int, band: int, order: list[bool]
) -> None:
    ahead = band and band + message + batch
    config = RateLimiterConfig(samples_per_insert=1.0, band_transitions=ahead)
    limiter = build_limiter(config, max_insert=message, batch_size=batch, once=True)
    for insert_first in order:
        take_turn(limiter, message, batch, insert_first=insert_first)
        assert 0 <= limiter.inserted - limiter.sampled <= (ahead or message + batch)
