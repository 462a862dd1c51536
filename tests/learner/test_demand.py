"""Actors are asked for what the limiter has room for, and for more while the learner waits."""

from __future__ import annotations

import math

import pytest

from asyncrl.core.messages import Peer
from asyncrl.learner.demand import Demand
from tests.support.sample_messages import make_peer

MESSAGE = 10
A, B = make_peer(0), make_peer(1)


def demand(*peers: Peer, window: int = 4) -> Demand:
    asked = Demand(MESSAGE, window)
    for peer in peers:
        asked.on_arrival(peer)
    return asked


def test_nobody_is_asked_for_more_than_there_is_room_for() -> None:
    asked = demand(A, B)
    assert list(asked.new(29.0, hungry=False)) == [(A, 1), (B, 1)]
    assert list(asked.new(29.0, hungry=False)) == [], "what is outstanding counts"
    asked.on_received(A, 1, at_once=True)
    assert list(asked.new(19.0, hungry=False)) == [], "one is still to come"
    assert list(asked.new(20.0, hungry=False)) == [(A, 2)]


def test_actors_take_turns() -> None:
    asked = demand(A, B)
    first = [peer for peer, _ in asked.new(10.0, hungry=False)]
    asked.on_received(first[0], 1, at_once=True)
    second = [peer for peer, _ in asked.new(10.0, hungry=False)]
    assert sorted(peer.actor_id for peer in first + second) == [0, 1]


def test_the_window_bounds_what_room_allows() -> None:
    asked = demand(A, window=3)
    assert [seq for _, seq in asked.new(math.inf, hungry=False)] == [1, 2, 3]
    assert asked.next_needs == math.inf


def test_a_hungry_learner_asks_beyond_the_room_more_each_time_nothing_waited() -> None:
    asked = demand(A, window=4)
    assert [seq for _, seq in asked.new(0.0, hungry=True)] == [1]
    asked.on_received(A, 1, at_once=None)
    assert [seq for _, seq in asked.new(0.0, hungry=True)] == [2], "as many as before"
    for seq in range(2, 8):
        asked.on_received(A, seq, at_once=True)
    assert [seq for _, seq in asked.new(0.0, hungry=True)] == [8, 9, 10, 11], "up to the window"
    asked.on_received(A, 11, at_once=False)
    assert [seq for _, seq in asked.new(0.0, hungry=True)] == [12, 13], "half as many after a wait"


def test_a_slow_actor_keeps_nobody_waiting() -> None:
    asked = demand(A, B)
    list(asked.new(math.inf, hungry=False))
    for seq in range(1, 5):
        asked.on_received(B, seq, at_once=None)
    assert list(asked.new(0.0, hungry=False)) == []
    assert list(asked.new(0.0, hungry=True)) == [(B, 5)]


def test_what_an_actor_owed_when_it_ended_others_may_make() -> None:
    asked = demand(A, B)
    list(asked.new(20.0, hungry=False))
    asked.on_end(A)
    assert list(asked.new(20.0, hungry=False)) == [(B, 2)]


def test_a_later_life_begins_with_its_first_message() -> None:
    asked = demand(A)
    list(asked.new(20.0, hungry=False))
    again = make_peer(0, 1)
    asked.on_arrival(again)
    asked.on_arrival(again)
    assert list(asked.new(10.0, hungry=False)) == [(again, 1)]
    asked.on_received(A, 2, at_once=True)  # one that was under way
    assert asked.outstanding == 1


def test_messages_that_nobody_asked_for_are_no_debt() -> None:
    asked = demand(A)
    list(asked.new(10.0, hungry=False))
    asked.on_received(A, 5, at_once=True)
    assert asked.outstanding == 0
    assert list(asked.new(10.0, hungry=False)) == [(A, 6)]


@pytest.mark.parametrize("peers", [(), (A,)])
def test_idle_is_when_there_are_actors_and_none_may_act(peers: tuple[Peer, ...]) -> None:
    asked = demand(*peers)
    assert asked.idle is bool(peers)
    assert asked.next_needs == (MESSAGE if peers else math.inf)
    list(asked.new(MESSAGE, hungry=False))
    assert not asked.idle
