from __future__ import annotations

import pytest

from asyncrl.core.messages import Peer
from asyncrl.supervision.restart_policy import Slow, Stragglers
from tests.support.sample_messages import make_peer

A, B, C, D = map(make_peer, range(4))


@pytest.fixture
def stragglers() -> Stragglers:
    """Half as fast as the median is slow, over 10 s, of which the first are at 0 s."""
    stragglers = Stragglers(0.5, 10.0)
    assert stragglers.look(0.0, {A: 10, B: 10, C: 10}) == {}
    return stragglers


def test_who_made_less_than_its_share_of_the_median_is_slow(stragglers: Stragglers) -> None:
    seen = stragglers.look(10.0, {A: 1010, B: 510, C: 210})
    assert seen == {C: Slow(steps_per_s=20.0, median_steps_per_s=50.0)}


def test_just_its_share_is_enough(stragglers: Stragglers) -> None:
    assert stragglers.look(10.0, {A: 1010, B: 510, C: 260}) == {}


def test_no_window_is_judged_before_it_is_over(stragglers: Stragglers) -> None:
    assert stragglers.look(9.9, {A: 1010, B: 510, C: 10}) == {}


def test_each_window_is_judged_by_itself(stragglers: Stragglers) -> None:
    assert C in stragglers.look(10.0, {A: 1010, B: 1010, C: 10})
    assert stragglers.look(20.0, {A: 1510, B: 1510, C: 510}) == {}
    assert A in stragglers.look(30.0, {A: 1510, B: 2510, C: 1510})


def test_an_incarnation_that_was_starting_is_not_judged(stragglers: Stragglers) -> None:
    again = Peer(actor_id=C.actor_id, incarnation=1)
    counts = {A: 1010, B: 1010, D: 1010}
    assert stragglers.look(10.0, counts | {again: 0}) == {}
    assert stragglers.look(20.0, {A: 2010, B: 2010, D: 2010, again: 1}) == {}
    assert list(stragglers.look(30.0, {A: 3010, B: 3010, D: 3010, again: 2})) == [again]


def test_of_two_actors_none_is_slow() -> None:
    stragglers = Stragglers(0.5, 10.0)
    stragglers.look(0.0, {A: 10, B: 10})
    assert stragglers.look(10.0, {A: 1010, B: 11}) == {}


def test_time_that_an_actor_waited_is_no_slowness() -> None:
    stragglers = Stragglers(0.5, 10.0)
    begun = dict.fromkeys((A, B, C, D), 10)
    for now_s in (0.0, 0.1, 0.2, 2.0, 5.0, 9.9):
        waiting = [B] if now_s > 2.0 else []
        assert stragglers.look(now_s, begun, waiting) == {}
    assert list(stragglers.look(10.0, {A: 1010, B: 210, C: 210, D: 1010})) == [C]


def test_who_waited_a_little_may_be_slow_all_the_same(stragglers: Stragglers) -> None:
    assert stragglers.look(5.0, {A: 10, B: 10, C: 10}, [C]) == {}
    assert C in stragglers.look(10.0, {A: 1010, B: 1010, C: 210})
    assert C not in stragglers.look(20.0, {A: 2010, B: 2010, C: 710}, [C]), "a whole window"


def test_step_that_is_under_way_behind_a_wait_counts(stragglers: Stragglers) -> None:
    """With steps of 2 s, no actor can have done half a step in the 2 s that were left to it."""
    assert stragglers.look(8.0, {A: 14, B: 14, C: 10}, [C]) == {}
    assert stragglers.look(10.0, {A: 15, B: 15, C: 10}) == {}
    assert C in stragglers.look(20.0, {A: 20, B: 20, C: 10}), "it has not waited since then"


def test_no_actor_is_slow_where_most_make_no_progress(stragglers: Stragglers) -> None:
    assert stragglers.look(10.0, {A: 1010, B: 10, C: 10}) == {}
