from __future__ import annotations

import pytest

from asyncrl.messages import Hello, Peer
from asyncrl.protocol import PeerTable
from tests.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_peer,
    make_report,
)

NEXT_LIFE = make_peer(incarnation=1)


@pytest.fixture
def table() -> PeerTable:
    return PeerTable(SCHEMA.hash(), window=3)


def test_nobody_is_heard_before_a_hello(table: PeerTable) -> None:
    assert not table.admits(make_report())
    assert table.counters == {"unknown": 1}
    assert table.admits(make_hello())
    assert table.admits(make_report())


def test_experience_counts_once(table: PeerTable) -> None:
    table.admits(make_hello())
    assert [table.admits(make_experience(seq)) for seq in (1, 2, 2, 1, 3)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert table.counters == {"duplicate": 2}


def test_messages_that_never_came_are_counted(table: PeerTable) -> None:
    table.admits(make_hello())
    assert table.admits(make_experience(3))
    assert table.counters == {"missing": 2}


def test_a_peer_without_credit_is_turned_away(table: PeerTable) -> None:
    table.admits(make_hello())
    for seq in (1, 2, 3):
        assert table.admits(make_experience(seq))
    assert not table.admits(make_experience(4))
    assert [peer for peer, _ in table.refusals] == [PEER]
    assert not table.admits(make_report())
    assert table.peers == []


def test_acknowledging_gives_credit(table: PeerTable) -> None:
    table.admits(make_hello())
    for seq in (1, 2, 3):
        table.admits(make_experience(seq))
    assert table.acknowledges(PEER, 2)
    assert [table.admits(make_experience(seq)) for seq in (4, 5)] == [True, True]
    assert not table.refusals


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_only_what_has_arrived_is_acknowledged_and_only_once(table: PeerTable, seq: int) -> None:
    table.admits(make_hello())
    table.admits(make_experience(1))
    table.admits(make_experience(2))
    assert table.acknowledges(PEER, 1)
    assert not table.acknowledges(PEER, seq)


def test_a_new_life_replaces_the_one_before(table: PeerTable) -> None:
    table.admits(make_hello())
    assert table.admits(make_hello(NEXT_LIFE))
    assert [peer for peer, _ in table.refusals] == [PEER]
    assert not table.admits(make_experience(1))
    assert not table.acknowledges(PEER, 1)
    assert table.counters == {"stale": 1}
    assert table.admits(make_experience(1, NEXT_LIFE))
    assert table.peers == [NEXT_LIFE]


def test_a_life_that_is_over_cannot_come_back(table: PeerTable) -> None:
    table.admits(make_hello(NEXT_LIFE))
    assert not table.admits(make_hello())
    assert [peer for peer, _ in table.refusals] == [PEER]
    assert table.counters == {"stale": 1}


def test_a_refused_life_stays_out_and_the_next_may_come(table: PeerTable) -> None:
    table.admits(make_hello())
    table.refuse(PEER, "why")
    assert table.refusals.popleft() == (PEER, "why")
    assert not table.admits(make_hello())
    assert not table.admits(make_experience(1))
    assert table.counters == {"refused": 2}
    assert table.admits(make_hello(NEXT_LIFE))


def test_another_schema_is_turned_away_and_both_are_named(table: PeerTable) -> None:
    assert not table.admits(Hello(peer=PEER, schema_hash="another"))
    peer, reason = table.refusals.popleft()
    assert peer == PEER
    assert "another" in reason
    assert SCHEMA.hash() in reason


def test_who_named_no_schema_may_report_but_send_no_experience(table: PeerTable) -> None:
    assert table.admits(Hello(peer=PEER, schema_hash=""))
    assert table.admits(make_report())
    assert not table.admits(make_experience(1))
    assert [peer for peer, _ in table.refusals] == [PEER]


def test_a_repeated_hello_changes_nothing(table: PeerTable) -> None:
    table.admits(make_hello())
    table.admits(make_experience(1))
    assert table.admits(make_hello())
    assert not table.admits(make_experience(1))


def test_actors_are_independent(table: PeerTable) -> None:
    other: Peer = make_peer(actor_id=1, incarnation=5)
    table.admits(make_hello())
    table.admits(make_hello(other))
    table.refuse(PEER, "why")
    assert table.admits(make_experience(1, other))
    assert table.hears(other)
    assert not table.hears(PEER)
