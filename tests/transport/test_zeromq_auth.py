"""Connections over TCP: who gets in, who does not, and what each side says of it."""

from __future__ import annotations

import logging
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import zmq

from asyncrl.core.errors import ConfigError, Refused, TransportError
from asyncrl.core.messages import Experience
from asyncrl.transport import zeromq_actor
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from tests.support import scale
from tests.support.attack import address_of, greeting
from tests.support.helpers import wait_until
from tests.support.intruders import (
    KINDS,
    NAME,
    NO_HANDSHAKE,
    OLD_GREETINGS,
    Intruder,
    Knocker,
    admitted,
    close_authenticator,
    curve,
    keys_of,
    no_keys,
    turned_away,
    until,
    wrong_keys,
)
from tests.support.sample_messages import PEER, SCHEMA, make_experience, make_hello, make_peer
from tests.transport.conftest import Keep

CONFIG = ZmqTransportConfig(max_message_bytes=1 << 16)
DEADLINE_S = 60.0
ATTEMPTS = 260 if scale.full else 25
MESSAGES = 5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq_actor, "_SILENCE_WARNING_S", 1.0)


@pytest.fixture
def learner() -> Iterator[ZmqLearnerLink]:
    link = open_learner()
    yield link
    link.close()


def open_learner(bind: str = "tcp://127.0.0.1") -> ZmqLearnerLink:
    return ZmqTransport.tcp(bind, schema=SCHEMA, config=CONFIG).listen()


def serve_one(learner: ZmqLearnerLink, actor: ZmqActorLink, seq: int = 1) -> None:
    """Check that an actor gets experience through."""
    if seq == 1:
        actor.hello(make_hello())
    received = until(learner, lambda: actor.send(make_experience(seq), 0.0))
    received += until(learner, lambda: actor.drain(0.0) or learner.acknowledge(PEER, seq))
    assert any(isinstance(m, Experience) and m.seq == seq for m in received)


# --- who gets in ---------------------------------------------------------------------------------


@pytest.mark.fault("F22")
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_keys_are_rejected(
    learner: ZmqLearnerLink, keep: Keep, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    actor = keep(admitted(learner, PEER).connect(PEER))
    serve_one(learner, actor)
    with caplog.at_level(logging.WARNING):
        set_keys = wrong_keys(learner, kind)
        received, tried = [], 0
        # An intruder may notice first that it has no right key, and close its connection.
        while tried < ATTEMPTS or "handshake_failed" not in learner.counters:
            keep(Intruder(learner.address, set_keys, MESSAGES))  # type: ignore[arg-type]
            tried += 1
            received += until(learner, lambda tried=tried: turned_away(learner) >= tried)
    assert received == []
    assert "without the right key" in caplog.text
    assert len(caplog.records) == 1, "one line for a flood, not one for each"
    serve_one(learner, actor, seq=2)
    assert set(learner.counters) <= NO_HANDSHAKE, "nothing of the actor was refused"


@pytest.mark.fault("F22")
@pytest.mark.parametrize("said", [b"", *OLD_GREETINGS.values()], ids=["nothing", *OLD_GREETINGS])
def test_protocol_without_keys_is_rejected(
    learner: ZmqLearnerLink, keep: Keep, said: bytes
) -> None:
    for _ in range(ATTEMPTS):
        old = keep(Knocker(admitted(learner, NAME), said, MESSAGES))
        assert until(learner, lambda old=old: old.is_cut) == []
    assert learner._table.peers == []


def test_actor_that_dies_while_it_connects_is_no_intruder(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    """Its launcher reports the death; a warning of wrong keys would mislead."""
    with caplog.at_level(logging.WARNING):
        with socket.create_connection(address_of(admitted(learner, NAME))) as dying:
            dying.sendall(greeting()[:11])
        until(learner, lambda: turned_away(learner))
    assert set(learner.counters) == {"handshake_aborted"}
    assert caplog.records == []


def test_with_the_right_key_an_intruder_of_the_test_would_get_in(
    learner: ZmqLearnerLink, keep: Keep
) -> None:
    good = keys_of(admitted(learner, NAME))
    set_keys = curve(good.server, good.public, good.secret)
    keep(Intruder(learner.address, set_keys, key=good.public))  # type: ignore[arg-type]
    received = until(learner, lambda: len(learner._table.peers) == 1)
    received += until(learner, lambda: learner._table._states[NAME.actor_id].received)
    assert [type(message).__name__ for message in received] == ["Hello", "Experience"]


@pytest.mark.fault("F22")
def test_connections_are_rejected_after_the_authenticator_closed(
    learner: ZmqLearnerLink, keep: Keep
) -> None:
    """Neither with a key that was good nor with none, and those inside go on."""
    actor = keep(admitted(learner, PEER).connect(PEER))
    serve_one(learner, actor)
    good = keys_of(admitted(learner, NAME))
    close_authenticator(learner)
    for set_keys in (
        curve(good.server, good.public, good.secret),
        curve(good.server, *zmq.curve_keypair()),
        no_keys,
    ):
        keep(Intruder(learner.address, set_keys))  # type: ignore[arg-type]
    received = until(learner, lambda: turned_away(learner) >= 3)
    assert received == []
    serve_one(learner, actor, seq=2)


@pytest.mark.fault("F26")
def test_an_actor_of_an_earlier_run_cannot_even_connect(
    learner: ZmqLearnerLink, keep: Keep
) -> None:
    before = admitted(learner, PEER)
    stale = keep(before.connect(PEER))
    serve_one(learner, stale)
    for seq in range(2, 2 + CONFIG.window):
        assert stale.send(make_experience(seq), 0.0)
    learner.close()
    after = keep(open_learner(before.endpoint))
    actor = keep(admitted(after, PEER).connect(PEER))
    serve_one(after, actor)
    received = until(after, lambda: turned_away(after) >= 3)
    assert received == []
    assert set(after.counters) <= NO_HANDSHAKE


def test_a_key_is_good_for_the_name_it_was_made_for_and_no_other(
    learner: ZmqLearnerLink, keep: Keep
) -> None:
    honest = keep(admitted(learner, PEER).connect(PEER))
    serve_one(learner, honest)
    captured = keep(admitted(learner, make_peer(7)).connect(make_peer(8)))
    captured.hello(make_hello(make_peer(8)))
    received = until(learner, lambda: learner.counters.get("impostor"))
    assert received == []
    assert learner._table.peers == [PEER]
    serve_one(learner, honest, seq=2)


def test_a_second_key_replaces_the_first(learner: ZmqLearnerLink, keep: Keep) -> None:
    first, second = admitted(learner, PEER), admitted(learner, PEER)
    assert keys_of(first).public != keys_of(second).public
    keep(first.connect(PEER))
    until(learner, lambda: learner.counters.get("handshake_failed"))
    serve_one(learner, keep(second.connect(PEER)))


# --- what is said --------------------------------------------------------------------------------


def silence(transport: ZmqTransport, caplog: pytest.LogCaptureFixture, seen: str) -> str:
    """Return what an actor logs that waits for long, once it has `seen` what it may see."""
    hours, wire = [0], transport._wire()
    actor = ZmqActorLink(
        *(transport.endpoint, wire, CONFIG, PEER, lambda: 3600.0 * hours[0]), curve=transport.curve
    )

    def waits() -> bool:
        return not actor.hello(make_hello(), 0.0)

    def has_seen() -> bool:
        assert waits()
        return not seen or actor._connections.counts[seen] > 0

    wait_until(has_seen, DEADLINE_S, f"connections that have {seen}")
    assert not caplog.records
    for hours[0] in (1, 2, 3):
        assert waits(), "until it is ended"
        assert waits()
        assert len(caplog.records) == hours[0], "said again, and not each time"
    actor.close()
    assert transport.endpoint in caplog.text
    assert "for 1 s" in caplog.text
    return caplog.text


def test_a_revoked_actor_gives_up(learner: ZmqLearnerLink, keep: Keep) -> None:
    transport = admitted(learner, PEER)
    learner.revoke(PEER)
    actor = keep(transport.connect(PEER))
    actor.hello(make_hello())
    with pytest.raises(Refused, match="revoked or belongs to another run") as caught:
        until(learner, lambda: actor.hello(make_hello()))
    assert transport.endpoint in str(caught.value)


@pytest.mark.fault("F16")
def test_actor_with_a_silent_learner_warns(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    assert "reachable, but busy" in silence(admitted(learner, PEER), caplog, "connected")


def test_actor_without_a_learner_warns(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    transport = admitted(learner, PEER)
    learner.close()
    assert "no connection is accepted" in silence(transport, caplog, "")


def test_an_address_without_a_key_is_no_use(learner: ZmqLearnerLink) -> None:
    assert isinstance(learner.address, ZmqTransport)
    assert not keys_of(learner.address).secret
    with pytest.raises(TransportError, match="no key"):
        learner.address.connect(PEER)
    with pytest.raises(TransportError, match="an actor's keys"):
        admitted(learner, PEER).listen()


def test_secrets_are_not_shown(learner: ZmqLearnerLink) -> None:
    transport = admitted(learner, PEER)
    secret = keys_of(transport).secret.decode()
    assert len(secret) == 40
    assert secret not in repr(transport) + str(transport) + repr(keys_of(transport))
    assert pickle.loads(pickle.dumps(transport)) == transport
    assert secret in pickle.dumps(transport).decode("latin1"), "or an actor could not connect"


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bind", "endpoint"),
    [
        ("tcp://127.0.0.1", "tcp://127.0.0.1:*"),
        ("tcp://10.1.2.3:7777", "tcp://10.1.2.3:7777"),
        ("tcp://[::1]", "tcp://[::1]:*"),
        ("tcp://[fd00::1]:80", "tcp://[fd00::1]:80"),
    ],
)
def test_an_address_is_bound_as_it_is_written(bind: str, endpoint: str) -> None:
    config = ZmqTransportConfig(bind=bind)
    transport = ZmqTransport.of(Path("/nowhere"), schema=SCHEMA, config=config)
    assert transport.endpoint == endpoint
    assert transport.curve is not None


@pytest.mark.parametrize(
    "bind",
    [
        *("tcp://*", "tcp://eth0", "tcp://10.0.0.1:x", "10.0.0.1", "tcp://10.0.0.1:70000"),
        *("tcp://::1", "ipc:///x", "", "tcp://[10.0.0.1", "tcp://10.0.0.1;tcp://1.1.1.1"),
    ],
)
def test_what_names_no_address_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match="IP address of this host") as error:
        ZmqTransportConfig(bind=bind)
    assert repr(bind) in str(error.value)


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0", "tcp://[::]:7777"])
def test_every_network_must_be_spelled_out(bind: str) -> None:
    with pytest.raises(ConfigError, match="bind_every_interface"):
        ZmqTransportConfig(bind=bind)
    with pytest.raises(ConfigError, match="is a single address"):
        ZmqTransportConfig(bind="tcp://10.0.0.1", bind_every_interface=True)
    with pytest.raises(ConfigError, match="bind_every_interface needs"):
        ZmqTransportConfig(bind_every_interface=True)


def test_actors_of_this_host_reach_a_learner_on_every_network(keep: Keep) -> None:
    config = replace(CONFIG, bind="tcp://0.0.0.0", bind_every_interface=True)
    learner = keep(ZmqTransport.of(Path("/nowhere"), schema=SCHEMA, config=config).listen())
    transport = admitted(learner, PEER)
    assert transport.endpoint.startswith("tcp://127.0.0.1:")
    serve_one(learner, keep(transport.connect(PEER)))


def test_without_encryption_there_is_no_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "curve")
    with pytest.raises(ConfigError, match="without encryption"):
        ZmqTransportConfig(bind="tcp://127.0.0.1")


def test_nothing_but_the_named_address_is_listened_on(tmp_path: Path, keep: Keep) -> None:
    tmp_path.chmod(0o700)
    link = ZmqTransport.of(tmp_path, schema=SCHEMA, config=ZmqTransportConfig()).listen()
    assert psutil.Process().net_connections(kind="inet") == []
    link.close()
    tcp = keep(open_learner())
    port = int(tcp.address.endpoint.rpartition(":")[2])  # type: ignore[attr-defined]
    found = psutil.Process().net_connections(kind="inet")
    assert [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN] == [
        ("127.0.0.1", port)
    ]


# --- sockets -------------------------------------------------------------------------------------
