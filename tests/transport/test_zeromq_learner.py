"""Peers that lie, flood and stall at a live socket, while an honest actor works."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest

from asyncrl.core.errors import Refused
from asyncrl.core.messages import Experience
from asyncrl.transport.wire import PROTOCOL
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from tests.support.attack import Address, address_of, greeting, is_cut, ready
from tests.support.helpers import wait_until
from tests.support.intruders import turned_away
from tests.support.sample_messages import SCHEMA, make_experience, make_hello, make_peer
from tests.transport.conftest import Keep

CONFIG = ZmqTransportConfig(max_message_bytes=1 << 20)
DEADLINE_S = 120.0
ROOT = Path(__file__).parent.parent.parent


class Site:
    """A learner and an honest actor."""

    def __init__(self, transport: ZmqTransport, keep: Keep) -> None:
        self.keep = keep
        self.learner: ZmqLearnerLink = keep(transport.listen())
        self.actor = self.connect()
        self.seq = 0
        self.received: list[Any] = []

    def admit(self, actor_id: int = 0) -> ZmqTransport:
        transport = self.learner.admit(make_peer(actor_id))
        assert isinstance(transport, ZmqTransport)
        return transport

    def connect(self, actor_id: int = 0) -> ZmqActorLink:
        """Return an actor that has introduced itself."""
        peer = make_peer(actor_id)
        actor = self.keep(self.admit(actor_id).connect(peer))
        actor.hello(make_hello(peer))
        return actor

    @property
    def address(self) -> Address:
        return address_of(self.admit(99))

    def take(self) -> None:
        for message in self.learner.poll(0.0):
            self.received.append(message)
            if isinstance(message, Experience):
                self.learner.acknowledge(message.peer, message.seq)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(
            lambda: self.take() or condition(), DEADLINE_S, f"{what}; {self.learner.counters}"
        )

    def works(self, messages: int = 3) -> None:
        """Check that the honest actor gets messages through."""
        for _ in range(messages):
            self.seq += 1
            self.until(lambda: self.actor.send(make_experience(self.seq), 0.0), "credit")
        self.until(lambda: self.actor.drain(0.0), "acknowledgement")
        seqs = [m.seq for m in self.received if isinstance(m, Experience)]
        assert seqs == list(range(1, self.seq + 1))


@pytest.fixture
def loopback(keep: Keep) -> Site:
    return Site(ZmqTransport.loopback(schema=SCHEMA, config=CONFIG), keep)


@pytest.fixture
def curve(keep: Keep) -> Site:
    return Site(ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=CONFIG), keep)


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


# --- what connects and does not speak ------------------------------------------------------------


@pytest.mark.fault("F24")
def test_who_does_not_end_the_handshake_is_cut_off(curve: Site) -> None:
    beginnings = [b"", b"\xff", greeting()[:11], greeting(), greeting(b"CURVE")]
    half_open = [socket.create_connection(curve.address) for _ in beginnings]
    for link, first in zip(half_open, beginnings, strict=True):
        link.sendall(first)
    curve.works()
    for link in half_open:
        curve.until(lambda link=link: is_cut(link), "the end of a half-open connection")
        link.close()
    curve.until(lambda: turned_away(curve.learner) >= 4, "their being counted")
    curve.works()


@pytest.mark.fault("F24")
def test_a_flood_of_connections_is_counted_and_reported_once(
    curve: Site, caplog: pytest.LogCaptureFixture
) -> None:
    curve.works()
    flood = [socket.create_connection(curve.address) for _ in range(60)]
    curve.until(lambda: curve.learner.counters.get("flood", 0) > 0, "the alarm")
    assert "connections of no actor" in caplog.text
    curve.works()
    for link in flood:
        link.close()
    curve.until(lambda: curve.learner._connections.open <= 1, "the flood to end")
    late = curve.connect(1)
    curve.until(lambda: late.send(make_experience(1, make_peer(1)), 0.0), "a late actor's turn")


@pytest.mark.fault("F23")
def test_a_message_that_claims_to_be_huge_costs_nothing(loopback: Site) -> None:
    before = resident_bytes()
    for size in (1 << 33, (1 << 64) - 1, CONFIG.max_message_bytes + 1):
        with socket.create_connection(loopback.address) as liar:
            liar.sendall(greeting() + ready() + b"\x02" + size.to_bytes(8, "big") + bytes(1000))
            loopback.until(lambda liar=liar: is_cut(liar), "the liar to be cut off")
    assert resident_bytes() - before < 1 << 30, "not what it claims"
    loopback.works()


@pytest.mark.fault("F23")
def test_a_message_without_end_is_not_received_before_a_key_was_shown(curve: Site) -> None:
    """Once a peer has shown a key, libzmq receives all frames of its messages."""
    size = CONFIG.max_message_bytes
    frames = 100 * (b"\x03" + size.to_bytes(8, "big") + bytes(size))
    with socket.create_connection(curve.address) as liar:
        liar.sendall(greeting(b"CURVE") + ready())
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            liar.sendall(frames)
    curve.until(lambda: turned_away(curve.learner), "word of it")
    curve.works()


# --- other versions ------------------------------------------------------------------------------


@pytest.mark.fault("F37")
def test_peer_of_another_protocol_gets_both_versions_in_the_error(loopback: Site) -> None:
    """As far as possible: its own decoder names both in the error that it raises."""
    loopback.works()
    newer = loopback.connect(1)
    newer._put([msgpack.packb([PROTOCOL + 1, 0, loopback.admit(1).run_id, 1, 0])])
    loopback.until(lambda: loopback.learner.counters.get("foreign_protocol"), "the message")
    with pytest.raises(Refused, match=f"protocol {PROTOCOL + 1}, this side {PROTOCOL}"):
        newer.latest_model("act", -1, DEADLINE_S)
    loopback.works()
