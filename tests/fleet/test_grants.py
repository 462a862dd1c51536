"""Actors are granted what the limiter has room for, and more while the learner is starved."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from asyncrl.core.messages import Peer
from asyncrl.fleet.grants import Grants
from tests.support.sample_messages import make_peer

MESSAGE = 10
A, B = make_peer(0), make_peer(1)


def grants(*peers: Peer, window: int = 4) -> Grants:
    given = Grants(MESSAGE, window)
    for peer in peers:
        given.on_arrival(peer)
    return given


def issue(
    given: Grants, room: float, *, shortage: float = 0.0, starved: bool = False, now_s: float = 0.0
) -> list[tuple[Peer, int]]:
    return list(given.issue(room, shortage=shortage, starved=starved, now_s=now_s))


def received(given: Grants, peer: Peer, seq: int, *, at_once: bool | None, **times: float) -> None:
    given.on_received(peer, seq, at_once=at_once, **{"now_s": 0.0, "network_s": 0.0} | times)


def test_no_more_is_granted_than_there_is_room_for() -> None:
    given = grants(A, B)
    assert issue(given, 29.0) == [(A, 1), (B, 1)]
    assert issue(given, 29.0) == [], "what is outstanding counts"
    received(given, A, 1, at_once=True)
    assert issue(given, 19.0) == [], "one is still to come"
    assert issue(given, 20.0) == [(A, 2)]


def test_a_starved_learner_grants_beyond_the_room_more_each_time_nothing_waited() -> None:
    given = grants(A, window=4)
    assert [seq for _, seq in issue(given, 0.0, starved=True)] == [1]
    received(given, A, 1, at_once=None)
    assert [seq for _, seq in issue(given, 0.0, starved=True)] == [2], "as many as before"
    for seq in range(2, 8):
        received(given, A, seq, at_once=True)
    assert [seq for _, seq in issue(given, 0.0, starved=True)] == [8, 9, 10, 11], "the window"
    received(given, A, 11, at_once=False)
    assert [seq for _, seq in issue(given, 0.0, starved=True)] == [12, 13], "half after a wait"


def test_what_the_learner_will_lack_is_granted_and_no_more() -> None:
    given = grants(A, B)
    assert issue(given, 0.0, shortage=0.0) == []
    assert issue(given, 0.0, shortage=15.0) == [(A, 1), (B, 1)]
    assert given.shortage_for_next == 20.0
    assert issue(given, 0.0, shortage=20.0) == [], "what is outstanding counts"
    assert issue(given, 0.0, shortage=20.5) == [(A, 2)]


def test_round_trips_are_those_of_actors_that_had_nothing_else_to_collect() -> None:
    given = grants(A, window=2)
    issue(given, 10.0, now_s=0.0)
    received(given, A, 1, at_once=True, now_s=50.0)
    assert given.round_trip_s == 0.0, "the first message includes the actor's start"
    issue(given, math.inf, now_s=51.0)
    received(given, A, 2, at_once=True, now_s=52.0)
    assert given.round_trip_s == 1.0
    received(given, A, 3, at_once=True, now_s=100.0)
    assert given.round_trip_s == 1.0, "the second one waited for the first"
    for k in range(4, 60):
        issue(given, 10.0, now_s=100.0 * k)
        received(given, A, k, at_once=True, now_s=100.0 * k + 0.5)
    assert given.round_trip_s == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("way_s", "granted"), [(0.0, 2), (5.0, 7), (100.0, 8)])
def test_what_is_granted_ahead_covers_the_way_and_not_the_collecting(
    way_s: float, granted: int
) -> None:
    given = grants(A, window=8)
    issue(given, 10.0)
    received(given, A, 1, at_once=True)
    issue(given, math.inf, now_s=0.0)
    for seq in range(2, 10):  # a second to collect each of them
        received(given, A, seq, at_once=True, now_s=way_s + seq - 1)
    ahead = issue(given, 0.0, shortage=1000.0, starved=True, now_s=way_s + 9)
    assert len(ahead) == granted
    assert issue(given, 0.0, shortage=1000.0, starved=True) == []
    assert given.shortage_for_next == math.inf, "no grant would help, so none is waited for"
    assert issue(given, 10.0 * (granted + 1)) == ([(A, 10 + granted)] if granted < 8 else [])


class Collector:
    """An actor that collects a message in 10 ms, as messages are granted to it."""

    def __init__(self, given: Grants, room: float = math.inf) -> None:
        self.given, self.room = given, room
        self.now_s = self.free_s = 0.0
        self.arrivals = deque[float]()
        self.seq = self.most = 0

    def run(self, seconds: float, *, network_s: float, unseen_s: float = 0.0) -> float:
        """Collect for this long; return the share of the time in which it was busy.

        A message takes `unseen_s` longer than the network needs: it waits in the learner.
        """
        began_s, before = self.now_s, self.seq
        trip_s = network_s + unseen_s
        while self.now_s < began_s + seconds:
            starved = self.room == 0
            for _ in issue(self.given, self.room, starved=starved, now_s=self.now_s):
                self.free_s = max(self.free_s, self.now_s + trip_s / 2) + 0.01
                self.arrivals.append(self.free_s + trip_s / 2)
            self.most = max(self.most, len(self.arrivals))
            self.now_s = self.arrivals.popleft()
            self.seq += 1
            received(self.given, A, self.seq, at_once=True, now_s=self.now_s, network_s=network_s)
        return (self.seq - before) * 0.01 / (self.now_s - began_s)


@pytest.mark.parametrize("room", [0.0, math.inf])
def test_an_actor_far_away_gets_as_many_as_keep_it_busy(room: float) -> None:
    actor = Collector(grants(A, window=8), room)
    actor.run(10.0, network_s=0.2)
    assert actor.run(100.0, network_s=0.2) > 0.9, "8 of the 21 messages in a round trip give 0.4"
    assert 21 <= actor.most < 40, "1.5 round trips"
    actor.run(10.0, network_s=0.0)
    actor.most = 0
    actor.run(10.0, network_s=0.0)
    assert actor.most <= 8, "it is near again"


@pytest.mark.parametrize(
    ("window", "room", "network_s", "unseen_s", "most"),
    [
        (8, math.inf, 10.0, 0.0, 64),
        (1, math.inf, 0.2, 0.0, 1),
        (8, math.inf, 0.001, 0.2, 8),  # its messages wait in the learner
        (8, 105.0, 0.2, 0.0, 10),  # as many as there is room for
    ],
)
def test_most_that_an_actor_far_away_gets_ahead(
    window: int, room: float, network_s: float, unseen_s: float, most: int
) -> None:
    actor = Collector(grants(A, window=window), room)
    actor.run(100.0, network_s=network_s, unseen_s=unseen_s)
    assert actor.most == most


def test_an_actor_whose_round_trip_is_measured_blocks_no_other() -> None:
    given = grants(A, B, window=4)
    for seq in range(1, 128):
        issue(given, math.inf)
        received(given, A, seq, at_once=True)
        received(given, B, seq, at_once=True)
    received(given, A, 128, at_once=True)  # from here on, A gets no grant ahead until it has none
    received(given, A, 129, at_once=True)
    assert given.outstanding == 1 + 3
    assert issue(given, 0.0, shortage=math.inf) == [(B, 131)]
    assert given.shortage_for_next == math.inf, "no grant would help, so none is waited for"
    received(given, A, 130, at_once=True)
    granted = [seq for _, seq in issue(given, 0.0, shortage=math.inf)]
    assert granted == [131, 132, 133, 134], "the first one measures, as it had no other"


def test_a_new_incarnation_begins_with_its_first_message() -> None:
    given = grants(A)
    issue(given, 20.0)
    again = make_peer(0, 1)
    given.on_arrival(again)
    given.on_arrival(again)
    assert issue(given, 10.0) == [(again, 1)]
    received(given, A, 2, at_once=True)  # one that was under way
    assert given.outstanding == 1


@pytest.mark.parametrize("seed", range(5))
def test_totals_are_those_of_the_actors_on_any_course(seed: int) -> None:
    draw, window = random.Random(seed), 4
    given, outstanding = Grants(MESSAGE, window), dict[Peer, int]()
    seqs: dict[Peer, int] = {}
    for step in range(400):
        peer = draw.choice([make_peer(i) for i in range(6)])
        match draw.choice(["arrives", "ends", "sends", "sends", "grants"]):
            case "arrives":
                given.on_arrival(peer)
                outstanding.setdefault(peer, 0)
            case "ends":
                given.on_end(peer)
                outstanding.pop(peer, None)
                seqs.pop(peer, None)
            case "sends" if outstanding.get(peer):
                arrived = draw.randint(1, outstanding[peer])
                outstanding[peer] -= arrived
                seqs[peer] = seqs.get(peer, 0) + arrived
                received(given, peer, seqs[peer], at_once=True, now_s=float(step))
            case "grants":
                for to, _ in issue(given, draw.uniform(0.0, 200.0), now_s=float(step)):
                    assert outstanding[to] == min(outstanding.values())
                    outstanding[to] += 1
        total = sum(outstanding.values())
        assert given.outstanding == total
        assert given.all_blocked == (bool(outstanding) and not total)
        full = all(count == window for count in outstanding.values())
        assert given.room_for_next == (math.inf if full else (total + 1) * MESSAGE)
