"""Peers without credentials, and peers of the past: in small, and that they would be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.core.messages import Message
from asyncrl.transport.protocol import PeerTable
from asyncrl.transport.zeromq_guard import Gatekeeper
from benchmarks.chaos import credentials, incarnations


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(credentials._CONNECTIONS, "small", 2)
    monkeypatch.setitem(incarnations._MESSAGES, "small", 20)


def test_nobody_without_credentials_is_heard(tmp_path: Path) -> None:
    (found,) = credentials.measure("small", tmp_path)
    assert found.passed, found.measured
    assert found.numbers["messages"] == 9 * 2 * 5


def test_a_gate_that_lets_everybody_in_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gatekeeper, "revoke", lambda *_: None)
    monkeypatch.setattr(credentials, "_AT_ONCE", 1)  # of one name, one at a time is heard
    monkeypatch.setattr(credentials, "_are_turned_away", _are_heard)
    (found,) = credentials.measure("small", tmp_path)
    assert found.verdict == "broken"
    assert "of revoked" in found.measured


def _are_heard(site, connect, _) -> None:
    stranger = connect(site.learner)
    before = site.counted("handshake_failed")
    site.until(
        lambda: (
            site.strangers
            or site.counted("handshake_failed") > before
            or getattr(stranger, "is_cut", False)
        ),
        "an answer",
    )
    stranger.close()


def test_the_past_is_not_heard(tmp_path: Path) -> None:
    (found,) = incarnations.measure("small", tmp_path)
    assert found.passed, found.measured
    assert found.numbers["messages"] == 20


def test_a_past_that_is_heard_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admits = PeerTable.admits

    def forgetful(table: PeerTable, message: Message) -> bool:
        return admits(table, message) or message.peer.incarnation == 0

    monkeypatch.setattr(PeerTable, "admits", forgetful)
    (found,) = incarnations.measure("small", tmp_path)
    assert found.verdict == "broken"
    assert found.numbers["of a former life"] == 10
