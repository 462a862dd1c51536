from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import asyncrl
from asyncrl.core.messages import SOFTWARE, Hello, Message
from asyncrl.core.types import MOST_ACTORS
from asyncrl.transport.protocol import _MOST_PEERS, Ack, PeerTable
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
@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize("make", [make_experience, lambda seq: make_report(seq=seq)])
def test_messages_count_once_and_what_follows_a_gap_ends_the_incarnation(
    table: PeerTable, make: Callable[[int], Message], seq: int
) -> None:
    table.admits(make_hello())
    assert table.admits(make(1))
    assert not table.admits(make(seq))
    assert [peer for peer, _ in table.refusals] == [PEER]
    assert not table.admits(make(2))
    assert table.counters == {"after_gap": 1, "refused": 1}
    assert not table.acknowledges(PEER, 1)
    assert table.admits(make_hello(NEXT_INCARNATION))


def test_an_acknowledgement_says_what_was_handled_read_and_granted(table: PeerTable) -> None:
    table.admits(make_hello())
    for message in (make_experience(1), make_experience(2), make_report()):
        assert table.admits(message)
    assert table.acknowledges(PEER, 1, 4)
    assert not table.acknowledges(PEER, 1, 3)
    assert not table.acknowledges(PEER, 3), "it has not arrived"
    assert table.ack(PEER) == Ack(1, 1, 4)


@pytest.mark.fault("F26")
@pytest.mark.parametrize("refused", [False, True])
def test_an_incarnation_is_admitted_once_and_no_earlier_one_after_it(
    table: PeerTable, *, refused: bool
) -> None:
    assert table.admits(make_hello(NEXT_INCARNATION))
    if refused:
        table.refuse(NEXT_INCARNATION, "why")
    for peer in (NEXT_INCARNATION, PEER):
        table.refusals.clear()
        assert not table.admits(make_hello(peer))
        assert [(to, "incarnation 1" in why) for to, why in table.refusals] == [(peer, True)]
    assert not table.admits(make_report(PEER))


@pytest.mark.fault("F31")
def test_objection_to_a_later_incarnation_turns_away_no_admitted_peer(table: PeerTable) -> None:
    table.admits(make_hello())
    assert not table.admits(Hello(peer=NEXT_INCARNATION, schema_hash="another"))
    table.refusals.clear()
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
