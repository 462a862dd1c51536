"""The ledger adds up, whichever process dies, and whenever."""

from __future__ import annotations

import pytest

from asyncrl.fleet.ledger import Balance, Ledger
from tests.support.sample_messages import PEER


@pytest.mark.fault("F1")
@pytest.mark.parametrize("late", [False, True])
def test_what_a_dead_actor_never_sent_is_lost_and_what_arrives_late_is_not(late: bool) -> None:
    ledger = Ledger()
    if late:
        ledger.on_ended(PEER, produced=17)
        assert ledger.balance().lost == 17
    ledger.on_received(PEER, transitions=10, produced=10, env_steps=10)
    ledger.on_stored(10)
    if not late:
        ledger.on_ended(PEER, produced=17)
    balance = ledger.balance()
    assert (balance.produced, balance.lost, balance.in_flight) == (17, 7, 0)


@pytest.mark.fault("F21")
def test_another_ledger_continues_and_what_was_in_flight_is_lost() -> None:
    before = Balance(produced=30, stored=20, dropped=4, lost=1)
    assert before.in_flight == 5
    ledger = Ledger()
    ledger.resume_at(before, env_steps=33)
    assert ledger.balance() == Balance(produced=30, stored=20, dropped=4, lost=6)
    assert ledger.balance().in_flight == 0
    assert ledger.env_steps == 33
    ledger.on_received(PEER, transitions=10, produced=12, env_steps=13)
    ledger.on_stored(7)
    ledger.on_dropped("overflow", 3)
    assert ledger.balance() == Balance(produced=42, stored=27, dropped=7, lost=6)
    assert ledger.balance().in_flight == 2
    assert ledger.env_steps == 46
