"""Actors are granted what the limiter has room for, and more while the learner is starved."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from asyncrl.core.messages import Peer
from asyncrl.learner.grants import Grants, PeakRate
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


def received(
    given: Grants,
    peer: Peer,
    seq: int,
    *,
    at_once: bool | None,
    now_s: float = 0.0,
    network_s: float = 0.0,
) -> None:
    given.on_received(peer, seq, at_once=at_once, now_s=now_s, network_s=network_s)


def test_no_more_is_granted_than_there_is_room_for() -> None:
    given = grants(A, B)
    assert issue(given, 29.0) == [(A, 1), (B, 1)]
    assert issue(given, 29.0) == [], "what is outstanding counts"
    received(given, A, 1, at_once=True)
    assert issue(given, 19.0) == [], "one is still to come"
    assert issue(given, 20.0) == [(A, 2)]


def test_actors_take_turns() -> None:
    given = grants(A, B)
    first = [peer for peer, _ in issue(given, 10.0)]
    received(given, first[0], 1, at_once=True)
    second = [peer for peer, _ in issue(given, 10.0)]
    assert sorted(peer.actor_id for peer in first + second) == [0, 1]


def test_the_window_bounds_what_room_allows() -> None:
    given = grants(A, window=3)
    assert [seq for _, seq in issue(given, math.inf)] == [1, 2, 3]
    assert given.room_for_next == math.inf


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


def test_no_actor_gets_more_than_64_ahead() -> None:
    actor = Collector(grants(A, window=8))
    actor.run(100.0, network_s=10.0)
    assert actor.most == 64


def test_a_window_of_one_stays_so_however_far_the_actor() -> None:
    actor = Collector(grants(A, window=1))
    assert actor.run(100.0, network_s=0.2) == pytest.approx(0.01 / 0.21, rel=0.1)


def test_an_actor_whose_messages_wait_in_the_learner_keeps_its_window() -> None:
    actor = Collector(grants(A, window=8))
    actor.run(100.0, network_s=0.001, unseen_s=0.2)
    assert actor.most == 8


def test_near_actors_keep_their_window_however_slow_the_receiver() -> None:
    peers = [make_peer(i) for i in range(100)]
    given = grants(*peers, window=8)
    queue = deque(issue(given, math.inf))
    assert len(queue) == 800
    for turn in range(10_000):  # all have sent all that they may, and one message is read
        peer, seq = queue.popleft()
        received(given, peer, seq, at_once=True, now_s=turn / 1000, network_s=0.001)
        queue.extend(issue(given, math.inf, now_s=turn / 1000))
        assert len(queue) == given.outstanding == 800
        assert queue[-1][1] - seq == 8


def test_actors_far_away_get_no_more_than_there_is_room_for() -> None:
    actor = Collector(grants(A, window=8), room=105.0)
    actor.run(100.0, network_s=0.2)
    assert actor.most == 10


def test_fewer_are_granted_to_an_actor_far_away_after_one_had_to_wait() -> None:
    actor = Collector(grants(A, window=8), room=0.0)
    actor.run(100.0, network_s=0.2)
    most = actor.given.outstanding
    assert most > 20
    for seq in range(actor.seq + 1, actor.seq + most + 1):
        received(actor.given, A, seq, at_once=False, now_s=actor.now_s, network_s=0.2)
    ahead = issue(actor.given, 0.0, starved=True, now_s=actor.now_s)
    assert len(ahead) <= 5, "as few as the share of the window that near actors get"


def test_a_longer_way_is_noticed() -> None:
    given, now_s, way_s = grants(A, window=8), 0.0, 0.0
    arrivals: list[float] = []
    for seq in range(1, 4000):
        for _ in issue(given, 0.0, starved=True, now_s=now_s):
            begins_s = max([now_s + way_s / 2, *(t - way_s / 2 for t in arrivals[-1:])])
            arrivals.append(begins_s + 1.0 + way_s / 2)
        now_s = arrivals[seq - 1]
        received(given, A, seq, at_once=True, now_s=now_s)
        way_s = 5.0 if seq > 300 else 0.0
        if seq in {299, 3999}:
            assert given.outstanding == (1 if seq == 299 else 6), "one has just arrived"


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


def test_a_peak_rate_outlasts_a_pause() -> None:
    rate = PeakRate()
    assert rate.update(1000.0, 0.0) == 0.0, "it did not see how long that took"
    assert rate.update(1100.0, 1.0) == 100.0
    assert rate.update(1100.0, 1.1) == 100.0
    assert 50.0 < rate.update(1100.0, 2.0) < 100.0
    assert rate.update(2000.0, 3.0) == 900.0


def test_a_slow_actor_blocks_no_other() -> None:
    given = grants(A, B)
    issue(given, math.inf)
    for seq in range(1, 5):
        received(given, B, seq, at_once=None)
    assert issue(given, 0.0) == []
    assert issue(given, 0.0, starved=True) == [(B, 5)]


def test_grants_of_an_actor_that_ended_go_to_others() -> None:
    given = grants(A, B)
    issue(given, 20.0)
    given.on_end(A)
    assert issue(given, 20.0) == [(B, 2)]


def test_a_new_incarnation_begins_with_its_first_message() -> None:
    given = grants(A)
    issue(given, 20.0)
    again = make_peer(0, 1)
    given.on_arrival(again)
    given.on_arrival(again)
    assert issue(given, 10.0) == [(again, 1)]
    received(given, A, 2, at_once=True)  # one that was under way
    assert given.outstanding == 1


def test_messages_without_a_grant_are_not_outstanding() -> None:
    given = grants(A)
    issue(given, 10.0)
    received(given, A, 5, at_once=True)
    assert given.outstanding == 0
    assert issue(given, 10.0) == [(A, 6)]


@pytest.mark.parametrize("peers", [(), (A,)])
def test_all_blocked_needs_actors_none_of_which_may_act(peers: tuple[Peer, ...]) -> None:
    given = grants(*peers)
    assert given.all_blocked is bool(peers)
    assert given.room_for_next == (MESSAGE if peers else math.inf)
    issue(given, MESSAGE)
    assert not given.all_blocked


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
