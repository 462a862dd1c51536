"""Connections with the joining key: who speaks, and who is no longer heard."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zmq

from asyncrl.core.errors import ConfigError, Refused, TransportError
from asyncrl.core.messages import Experience, Hello, Peer
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from asyncrl.transport.zeromq_hosts import MAX_BYTES, ZmqHostLine, ZmqHostsLink
from asyncrl.transport.zeromq_socket import Curve, advertised
from tests.support.helpers import wait_until
from tests.support.intruders import NAME, Intruder, admitted, curve
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_peer,
)
from tests.transport.conftest import Keep

CONFIG = ZmqTransportConfig()
DEADLINE_S = 60.0


class Site:
    """A learner that hosts can join."""

    def __init__(self, keep: Keep) -> None:
        transport = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=CONFIG)
        self.keep = keep
        self.learner: ZmqHostsLink = keep(transport.listen_to_hosts())
        self.key: Curve = self.learner.hosts.open(2)
        self.address = admitted(self.learner, make_peer(99))
        self.arrived: list[tuple[bytes, bytes]] = []
        self.messages: list[Any] = []

    def line(self, endpoint: str = "") -> ZmqHostLine:
        return self.keep(ZmqHostLine(endpoint or self.address.endpoint, self.key, CONFIG))

    def actor(self, peer: Peer) -> ZmqActorLink:
        return self.keep(admitted(self.learner, peer).connect(peer))

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def holds() -> bool:
            self.messages += self.learner.poll(0.0)
            self.arrived += self.learner.hosts.receive(0.0)
            return bool(condition())

        wait_until(holds, DEADLINE_S, f"{what}; {self.learner.counters}")


@pytest.fixture
def site(keep: Keep) -> Site:
    return Site(keep)


def test_messages_go_both_ways_between_one_host_and_the_learner(site: Site) -> None:
    one, other = site.line(), site.line()
    one.send(b"one")
    other.send(b"other")
    site.until(lambda: len(site.arrived) == 2, "both")
    names = {data: name for name, data in site.arrived}
    site.learner.hosts.send(names[b"one"], b"for one")
    site.learner.hosts.send(names[b"other"], b"for the other")
    heard: list[bytes] = []
    site.until(lambda: heard.extend(one.receive(0.0)) or heard, "an answer")
    assert heard == [b"for one"]
    assert site.messages == []


def test_a_name_serves_as_an_address(site: Site) -> None:
    port = site.address.endpoint.rpartition(":")[2]
    line = site.line(f"tcp://localhost:{port}")
    line.send(b"here")
    site.until(lambda: site.arrived, "a host that knows a name only")


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("bind", "found", "by_ipv6"),
    [
        ("tcp://10.0.0.5", [V6, V4], False),
        ("tcp://10.0.0.5", [V6], True),  # behind address translation
        ("tcp://[fd00::5]:7777", [V6, V4], True),
        ("tcp://[::]:7777", [V4, V6], False),  # as the system prefers it
        ("tcp://10.0.0.5", [], False),
        ("tcp://[fd00::5]", [], True),
    ],
)
def test_a_name_is_looked_up_in_the_family_that_the_learner_listens_in(
    bind: str, found: list[int], by_ipv6: bool, monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[int]]:
        assert host == "learner.example.org"
        if not found:
            raise socket.gaierror
        return [(family,) for family in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    every = "[::]" in bind
    config = ZmqTransportConfig(bind=bind, bind_every_interface=every)
    key = Curve.make(Curve.make().public)
    line = keep(ZmqHostLine("tcp://learner.example.org:7777", key, config))
    assert line._socket.getsockopt(zmq.IPV6) == by_ipv6


def test_the_joining_key_cannot_take_the_place_of_an_actor(site: Site) -> None:
    actor = site.actor(NAME)
    site.until(lambda: actor.hello(make_hello(NAME)), "a welcome")
    key = curve(site.key.server, site.key.public, site.key.secret)
    impostor = site.keep(Intruder(site.address, key))
    site.until(lambda: site.learner.counters.get("impostor"), "a rejection")
    site.learner.publish(make_model(1), "act")
    site.until(lambda: actor.latest_model("act", -1), "its model")
    assert not impostor._socket.poll(0), "it has heard nothing"
    assert not site.learner._connections.counts["disconnected"]


def test_an_actor_connects_with_a_pair_made_where_it_runs_once_its_key_is_allowed(
    site: Site,
) -> None:
    made = Curve.make(site.key.server)
    transport = replace(site.address, curve=made)

    def is_denied(peer: Peer) -> None:
        actor = site.keep(transport.connect(peer))
        with pytest.raises(Refused, match="does not accept the key"):
            site.until(lambda: actor.hello(make_hello(peer)), "a refusal")

    public = made.public.decode()
    assert site.learner.hosts.objection_to_key(public) == ""
    is_denied(PEER)
    assert site.learner.admit(PEER, public) is site.learner.address
    assert "of another peer" in site.learner.hosts.objection_to_key(public)
    other = site.keep(transport.connect(make_peer(8)))
    other.hello(make_hello(make_peer(8)))
    site.until(lambda: site.learner.counters.get("impostor"), "no other actor has this key")
    assert site.messages == []
    actor = site.keep(transport.connect(PEER))
    site.until(lambda: actor.hello(make_hello(PEER)), "a welcome")
    site.learner.revoke(PEER)
    is_denied(PEER)


def test_what_is_no_key_or_that_of_another_peer_is_refused(site: Site) -> None:
    assert site.address.curve is not None
    for key, words in (
        *(
            (key, "40 letters of the encoding Z85")
            for key in (b"", b"a" * 39, b"#" * 40, "é".encode() * 40)
        ),
        (site.key.server, "is the learner's"),
        (site.key.public, "is that of another peer"),  # the joining key
        (site.address.curve.public, "is that of another peer"),
    ):
        assert words in site.learner.hosts.objection_to_key(key.decode())


def test_a_line_of_a_run_that_was_started_again_is_refused(site: Site) -> None:
    site.learner.hosts.open(2)
    line = site.line()
    line.send(b"one")

    with pytest.raises(Refused, match="has ended, or was started again"):
        site.until(lambda: line.receive(0.0), "a refusal")
    assert site.arrived == []


def test_who_is_silent_is_described(site: Site) -> None:
    line = site.line()
    site.until(lambda: line.receive(0.0) or "reachable" in line.why_silent(), "a connection")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lost = site.line(f"tcp://127.0.0.1:{port}")
    assert lost.receive(0.0) == []
    assert "no connection is accepted there" in lost.why_silent()


def test_an_actor_lost_with_its_host_is_not_heard_on_its_open_connection(site: Site) -> None:
    actor = site.actor(PEER)
    actor.hello(make_hello())
    site.until(lambda: actor.send(make_experience(1), 0.0), "credit")
    site.until(lambda: any(isinstance(m, Experience) for m in site.messages), "the first message")
    site.learner.revoke(PEER, fence=True)
    actor.send(make_experience(2), 0.0)

    with pytest.raises(Refused, match="lost this actor with its host"):
        site.until(actor.stopping, "the actor to end")
    assert sum(isinstance(m, Experience) for m in site.messages) == 1
    assert site.learner.counters["fenced"] >= 1


def test_many_actors_that_join_at_once_are_no_flood(site: Site) -> None:
    peers = [make_peer(i) for i in range(64)]
    actors = [site.actor(peer) for peer in peers]
    wait_until(
        lambda: (
            site.learner._connections.read() is not None
            and site.learner._connections.open >= len(peers)
        ),
        DEADLINE_S,
        "all connections, before anybody is heard",
    )
    for actor, peer in zip(actors, peers, strict=True):
        actor.hello(make_hello(peer))
    site.until(lambda: sum(isinstance(m, Hello) for m in site.messages) >= 64, "all of them")
    assert "flood" not in site.learner.counters


def test_hosts_need_keys(keep: Keep) -> None:
    link = keep(ZmqTransport.loopback(schema=SCHEMA, config=CONFIG).listen_to_hosts())
    with pytest.raises(TransportError, match="over TCP only"):
        link.hosts.open(1)


def test_what_is_no_message_of_a_host_is_not_kept(site: Site) -> None:
    mailbox, name = site.learner.hosts, b"\x02" + bytes(16)
    assert not mailbox.put(name, [memoryview(b"a"), memoryview(b"b")])
    assert not mailbox.put(name, [memoryview(bytes(MAX_BYTES + 1))])
    assert not mailbox.put(b"\x01" + bytes(16), [memoryview(b"a")])
    for size in (0, MAX_BYTES):
        for _ in range(100_000 // (1 + size // 100)):
            assert mailbox.put(name, [memoryview(bytes(size))])
        assert len(mailbox.receive(0.0)) <= (16 << 20) // max(size, 256) + 1, "memory is bounded"
    assert mailbox.put(name, [memoryview(b"a")])
    assert mailbox.receive(0.0) == [(name, b"a")]


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        ("learner.example.org", "tcp://learner.example.org:7"),
        ("learner:80", "tcp://learner:80"),
        ("tcp://10.0.0.5", "tcp://10.0.0.5:7"),
        ("[fd00::5]:90", "tcp://[fd00::5]:90"),
    ],
)
def test_an_advertised_name_takes_the_place_of_the_address(name: str, endpoint: str) -> None:
    assert advertised(name, "tcp://0.0.0.0:7") == endpoint


def test_an_address_without_a_host_is_refused() -> None:
    for name in ("a b", "tcp://", "host:0", "host:99999", "fd00::5", "ipc://x"):
        with pytest.raises(ConfigError, match="advertise must be a host name"):
            ZmqTransportConfig(bind="tcp://127.0.0.1", advertise=name)
    with pytest.raises(ConfigError, match="advertise is 'host', but bind is 'ipc'"):
        ZmqTransportConfig(advertise="host")
