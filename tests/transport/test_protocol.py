from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

import asyncrl
from asyncrl.core.messages import SOFTWARE, Hello
from asyncrl.core.types import MOST_ACTORS
from asyncrl.transport.protocol import _MOST_PEERS, Ack, PeerTable, Request, Resend, Sync
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_peer,
    make_report,
)

NEXT_INCARNATION = make_peer(incarnation=1)


@pytest.fixture
def table() -> PeerTable:
    return PeerTable(SCHEMA.hash(), window=3)


@pytest.mark.fault("F32")
def test_experience_counts_once_and_what_follows_a_gap_waits_for_it(table: PeerTable) -> None:
    table.admits(make_hello())
    assert table.admits(make_experience(1))
    assert not table.admits(make_experience(1))
    assert table.acknowledges(PEER, 1)
    assert not table.admits(make_experience(3))
    assert not table.admits(make_experience(4))
    assert list(table.resends) == [(PEER, Resend(1))], "asked for once, not for each that follows"
    assert [table.admits(make_experience(seq)) for seq in (2, 3, 4)] == [True, True, True]
    assert table.counters == {"after_gap": 2, "duplicate": 1}


@pytest.mark.fault("F32")
def test_a_sync_reports_what_never_came(table: PeerTable) -> None:
    table.admits(make_hello())
    table.admits(make_experience(1))
    table.acknowledges(PEER, 1)
    table.syncs(Sync(PEER, sent=1))
    assert not table.resends
    table.syncs(Sync(PEER, sent=3))
    assert list(table.resends) == [(PEER, Resend(1))]
    assert table.ack(PEER) == Ack(1, 0)
    table.admits(make_report())
    table.syncs(Sync(PEER, sent=1, reports=2))
    assert table.resends[-1] == (PEER, Resend(1, 1))
    assert table.ack(PEER) == Ack(1, 1)


@pytest.mark.fault("F31")
def test_one_model_of_a_topic_is_under_way_at_a_time(table: PeerTable) -> None:
    """As far as its actor knows: an acknowledgement has reported lost ones."""
    table.admits(make_hello())
    for models in range(3):
        for _ in range(2):
            assert table.may_be_sent(Request(PEER, "act", -1, models))
        table.delivers(PEER, "act")
        assert not table.may_be_sent(Request(PEER, "act", -1, models))
    assert table.may_be_sent(Request(PEER, "evaluate", -1, 0)), "of another"
    table.delivers(PEER, "evaluate")
    assert not table.may_be_sent(Request(PEER, "evaluate", -1, 3))
    assert table.may_be_sent(Request(PEER, "act", -1, 3))
    table.admits(make_hello(NEXT_INCARNATION))
    assert table.may_be_sent(Request(NEXT_INCARNATION, "act", -1, 0))


@pytest.mark.fault("F32")
def test_reports_count_once_and_in_order(table: PeerTable) -> None:
    table.admits(make_hello())
    assert [table.admits(make_report(seq=seq)) for seq in (1, 1, 3, 4, 2, 3, 4, 2)] == [
        *(True, False, False, False),
        *(True, True, True, False),
    ]
    assert list(table.resends) == [(PEER, Resend(0, 1))], "asked for once"
    assert table.counters == {"duplicate": 2, "after_gap": 2}
    assert table.ack(PEER) == Ack(0, 4)


@pytest.mark.fault("F31")
def test_a_refused_incarnation_gets_the_refusal_again_with_each_message(table: PeerTable) -> None:
    """It may not have heard it, and would wait forever."""
    table.refuse(NEXT_INCARNATION, "why")
    for peer in (NEXT_INCARNATION, PEER):
        for message in (make_hello(peer), make_experience(1, peer), make_report(peer)):
            table.refusals.clear()
            assert not table.admits(message)
            assert list(table.refusals) == [(peer, "why")]


@pytest.mark.fault("F31")
def test_objection_to_a_later_incarnation_turns_away_no_admitted_peer(table: PeerTable) -> None:
    table.admits(make_hello())
    assert not table.admits(Hello(peer=NEXT_INCARNATION, schema_hash="another"))
    table.refusals.clear()
    assert table.admits(make_hello())
    assert table.admits(make_report())
    assert not table.refusals


@pytest.mark.fault("F25", "F37")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"schema_hash": "another"}, SCHEMA.hash()),
        *(({"software": software}, SOFTWARE) for software in (SOFTWARE + ".1", "asyncrl", "")),
    ],
)
def test_what_differs_is_turned_away_and_both_are_named(
    table: PeerTable, theirs: dict[str, str], ours: str
) -> None:
    assert not table.admits(replace(make_hello(), **theirs))  # type: ignore[arg-type]
    peer, reason = table.refusals.popleft()
    assert peer == PEER
    assert all(repr(value) in reason for value in theirs.values())
    assert ours in reason
    assert asyncrl.__version__ in SOFTWARE
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in SOFTWARE
    assert SOFTWARE.endswith(f" with torch {torch.__version__.partition('+')[0]}")


def test_a_peer_without_torch_is_admitted(table: PeerTable) -> None:
    without = SOFTWARE.partition(" with torch ")[0] + " with torch not installed"
    assert table.admits(replace(make_hello(), software=without))


def test_a_crowd_of_names_takes_no_memory(table: PeerTable) -> None:
    for actor_id in range(2 * _MOST_PEERS):
        table.admits(make_hello(make_peer(actor_id)))
    assert len(table.peers) == MOST_ACTORS + 2, "with the evaluator and the server of inference"
    assert "already" in table.refusals[-1][1]
    for actor_id in range(2 * _MOST_PEERS):
        table.refuse(make_peer(actor_id), "why")
    assert len(table._refused) <= _MOST_PEERS


def test_who_named_no_schema_may_report_but_send_no_experience(table: PeerTable) -> None:
    assert table.admits(Hello(peer=PEER, schema_hash=""))
    assert table.admits(make_report())
    assert not table.admits(make_experience(1))
    assert [peer for peer, _ in table.refusals] == [PEER]
