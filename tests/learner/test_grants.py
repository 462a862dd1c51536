"""Actors are granted what the limiter has room for, and more while the learner is starved."""

from __future__ import annotations

import math

import pytest

from asyncrl.core.messages import Peer
from asyncrl.learner.grants import Grants
from tests.support.sample_messages import make_peer

MESSAGE = 10
A, B = make_peer(0), make_peer(1)


def grants(*peers: Peer, window: int = 4) -> Grants:
    given = Grants(MESSAGE, window)
    for peer in peers:
        given.on_arrival(peer)
    return given


def test_no_more_is_granted_than_there_is_room_for() -> None:
    given = grants(A, B)
    assert list(given.issue(29.0, starved=False)) == [(A, 1), (B, 1)]
    assert list(given.issue(29.0, starved=False)) == [], "what is outstanding counts"
    given.on_received(A, 1, at_once=True)
    assert list(given.issue(19.0, starved=False)) == [], "one is still to come"
    assert list(given.issue(20.0, starved=False)) == [(A, 2)]


def test_actors_take_turns() -> None:
    given = grants(A, B)
    first = [peer for peer, _ in given.issue(10.0, starved=False)]
    given.on_received(first[0], 1, at_once=True)
    second = [peer for peer, _ in given.issue(10.0, starved=False)]
    assert sorted(peer.actor_id for peer in first + second) == [0, 1]


def test_the_window_bounds_what_room_allows() -> None:
    given = grants(A, window=3)
    assert [seq for _, seq in given.issue(math.inf, starved=False)] == [1, 2, 3]
    assert given.room_for_next == math.inf


def test_a_starved_learner_grants_beyond_the_room_more_each_time_nothing_waited() -> None:
    given = grants(A, window=4)
    assert [seq for _, seq in given.issue(0.0, starved=True)] == [1]
    given.on_received(A, 1, at_once=None)
    assert [seq for _, seq in given.issue(0.0, starved=True)] == [2], "as many as before"
    for seq in range(2, 8):
        given.on_received(A, seq, at_once=True)
    assert [seq for _, seq in given.issue(0.0, starved=True)] == [8, 9, 10, 11], "the window"
    given.on_received(A, 11, at_once=False)
    assert [seq for _, seq in given.issue(0.0, starved=True)] == [12, 13], "half after a wait"


def test_a_slow_actor_blocks_no_other() -> None:
    given = grants(A, B)
    list(given.issue(math.inf, starved=False))
    for seq in range(1, 5):
        given.on_received(B, seq, at_once=None)
    assert list(given.issue(0.0, starved=False)) == []
    assert list(given.issue(0.0, starved=True)) == [(B, 5)]


def test_grants_of_an_actor_that_ended_go_to_others() -> None:
    given = grants(A, B)
    list(given.issue(20.0, starved=False))
    given.on_end(A)
    assert list(given.issue(20.0, starved=False)) == [(B, 2)]


def test_a_new_incarnation_begins_with_its_first_message() -> None:
    given = grants(A)
    list(given.issue(20.0, starved=False))
    again = make_peer(0, 1)
    given.on_arrival(again)
    given.on_arrival(again)
    assert list(given.issue(10.0, starved=False)) == [(again, 1)]
    given.on_received(A, 2, at_once=True)  # one that was under way
    assert given.outstanding == 1


def test_messages_without_a_grant_are_not_outstanding() -> None:
    given = grants(A)
    list(given.issue(10.0, starved=False))
    given.on_received(A, 5, at_once=True)
    assert given.outstanding == 0
    assert list(given.issue(10.0, starved=False)) == [(A, 6)]


@pytest.mark.parametrize("peers", [(), (A,)])
def test_all_blocked_needs_actors_none_of_which_may_act(peers: tuple[Peer, ...]) -> None:
    given = grants(*peers)
    assert given.all_blocked is bool(peers)
    assert given.room_for_next == (MESSAGE if peers else math.inf)
    list(given.issue(MESSAGE, starved=False))
    assert not given.all_blocked
