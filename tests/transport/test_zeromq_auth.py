"""Connections over TCP: who gets in, who does not, and what each side says of it."""

from __future__ import annotations

import logging
import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq

from asyncrl.core.errors import ConfigError, Refused, TransportError
from asyncrl.core.messages import Experience
from asyncrl.transport.zeromq import ZmqActorLink, ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_socket import Curve, check_libzmq
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
    wrong_keys,
)
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_peer,
)

CONFIG = ZmqTransportConfig(
    max_message_bytes=1 << 16, request_interval_s=0.05, silence_warning_s=1.0
)
DEADLINE_S = 60.0
ATTEMPTS = 260 if scale.full else 25
MESSAGES = 5


@pytest.fixture
def learner() -> Iterator[ZmqLearnerLink]:
    link = open_learner()
    yield link
    link.close()


def open_learner(bind: str = "tcp://127.0.0.1") -> ZmqLearnerLink:
    return ZmqTransport.tcp(bind, schema=SCHEMA, config=CONFIG).listen()


def until(learner: ZmqLearnerLink, condition: Callable[[], Any]) -> list[Any]:
    """Let the learner work until a condition holds; return what it received meanwhile."""
    received: list[Any] = []

    def holds() -> bool:
        received.extend(learner.poll(0.0))
        return bool(condition())

    wait_until(holds, DEADLINE_S, f"a condition; {learner.counters}")
    return received


def serve_one(learner: ZmqLearnerLink, actor: ZmqActorLink, seq: int = 1) -> None:
    """Check that an actor gets experience through."""
    if seq == 1:
        actor.hello(make_hello())
    received = until(learner, lambda: actor.send(make_experience(seq), 0.0))

    def has_come() -> bool:
        received.extend(learner.poll(0.0))
        return any(isinstance(m, Experience) and m.seq == seq for m in received)

    wait_until(has_come, DEADLINE_S, "the message of an honest actor")
    learner.acknowledge(PEER, seq)
    until(learner, lambda: actor.drain(0.0))


# --- who gets in ---------------------------------------------------------------------------------


@pytest.mark.fault("F22")
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_keys_are_rejected(
    learner: ZmqLearnerLink, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    actor = admitted(learner, PEER).connect(PEER)
    serve_one(learner, actor)
    with caplog.at_level(logging.WARNING):
        set_keys = wrong_keys(learner, kind)
        intruders = [
            Intruder(learner.address, set_keys, MESSAGES)  # type: ignore[arg-type]
            for _ in range(ATTEMPTS)
        ]
        # An intruder may notice first that it has no right key, and close its connection.
        received = until(learner, lambda: turned_away(learner) >= ATTEMPTS)
        received += until(learner, lambda: learner.counters.get("handshake_failed"))
    for intruder in intruders:
        intruder.close()
    assert received == []
    assert "without the right key" in caplog.text
    assert len(caplog.records) == 1, "one line for a flood, not one for each"
    serve_one(learner, actor, seq=2)
    assert set(learner.counters) <= NO_HANDSHAKE, "nothing of the actor was refused"
    actor.close()


@pytest.mark.fault("F22")
@pytest.mark.parametrize("said", [b"", *OLD_GREETINGS.values()], ids=["nothing", *OLD_GREETINGS])
def test_protocol_without_keys_is_rejected(learner: ZmqLearnerLink, said: bytes) -> None:
    for _ in range(ATTEMPTS):
        old = Knocker(admitted(learner, NAME), said, MESSAGES)
        assert until(learner, lambda old=old: old.is_cut) == []
        old.close()
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


def test_with_the_right_key_an_intruder_of_the_test_would_get_in(learner: ZmqLearnerLink) -> None:
    good = keys_of(admitted(learner, NAME))
    set_keys = curve(good.server, good.public, good.secret)
    intruder = Intruder(learner.address, set_keys, key=good.public)  # type: ignore[arg-type]
    received = until(learner, lambda: len(learner._table.peers) == 1)
    received += until(learner, lambda: learner._table._states[NAME.actor_id].received)
    assert [type(message).__name__ for message in received] == ["Hello", "Experience"]
    intruder.close()


@pytest.mark.fault("F22")
def test_connections_are_rejected_after_the_authenticator_closed(learner: ZmqLearnerLink) -> None:
    """Neither with a key that was good nor with none, and those inside go on."""
    actor = admitted(learner, PEER).connect(PEER)
    serve_one(learner, actor)
    good = keys_of(admitted(learner, NAME))
    close_authenticator(learner)
    intruders = [
        Intruder(learner.address, set_keys)  # type: ignore[arg-type]
        for set_keys in (
            curve(good.server, good.public, good.secret),
            curve(good.server, *zmq.curve_keypair()),
            no_keys,
        )
    ]
    received = until(learner, lambda: turned_away(learner) >= 3)
    assert received == []
    serve_one(learner, actor, seq=2)
    for link in (*intruders, actor):
        link.close()


@pytest.mark.fault("F26")
def test_an_actor_of_an_earlier_run_cannot_even_connect(learner: ZmqLearnerLink) -> None:
    before = admitted(learner, PEER)
    stale = before.connect(PEER)
    serve_one(learner, stale)
    for seq in range(2, 2 + CONFIG.window):
        assert stale.send(make_experience(seq), 0.0)
    learner.close()
    after = open_learner(before.endpoint)
    actor = admitted(after, PEER).connect(PEER)
    serve_one(after, actor)
    received = until(after, lambda: turned_away(after) >= 3)
    assert received == []
    assert set(after.counters) <= NO_HANDSHAKE
    for link in (stale, actor, after):
        link.close()


def test_a_key_is_good_for_the_name_it_was_made_for_and_no_other(learner: ZmqLearnerLink) -> None:
    honest = admitted(learner, PEER).connect(PEER)
    serve_one(learner, honest)
    captured = admitted(learner, make_peer(7)).connect(make_peer(8))
    captured.hello(make_hello(make_peer(8)))
    received = until(learner, lambda: learner.counters.get("impostor"))
    assert received == []
    assert learner._table.peers == [PEER]
    serve_one(learner, honest, seq=2)
    captured.close()
    honest.close()


def test_a_second_key_replaces_the_first(learner: ZmqLearnerLink) -> None:
    first, second = admitted(learner, PEER), admitted(learner, PEER)
    assert keys_of(first).public != keys_of(second).public
    old = first.connect(PEER)
    until(learner, lambda: learner.counters.get("handshake_failed"))
    actor = second.connect(PEER)
    serve_one(learner, actor)
    for link in (old, actor):
        link.close()


def test_a_model_of_exactly_the_largest_size_arrives() -> None:
    model = replace(make_model(1), params={"w": np.zeros(1 << 16, np.uint8)})
    config = replace(CONFIG, max_model_bytes=1 << 16)
    learner = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=config).listen()
    actor = admitted(learner, PEER).connect(PEER)
    actor.hello(make_hello())
    learner.publish(model, "act")
    until(learner, lambda: actor.latest_model("act", -1))
    actor.close()
    learner.close()


# --- what is said --------------------------------------------------------------------------------


class HandClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def silence(
    learner: ZmqLearnerLink | None,
    transport: ZmqTransport,
    caplog: pytest.LogCaptureFixture,
    seen: str,
) -> str:
    """Return what an actor logs that waits for long, once it has `seen` what it may see."""
    clock = HandClock()
    actor = ZmqActorLink(
        transport.endpoint, transport._wire(), CONFIG, PEER, clock, curve=transport.curve
    )

    def waits() -> bool:
        if learner is not None:
            learner.poll(0.0)
        return not actor.hello(make_hello(), 0.0)

    def has_seen() -> bool:
        assert waits()
        return not seen or actor._connections.counts[seen] > 0

    wait_until(has_seen, DEADLINE_S, f"connections that have {seen}")
    assert not caplog.records
    for hours in (1, 2, 3):
        clock.now_s = 3600.0 * hours
        assert waits(), "until it is ended"
        assert waits()
        assert len(caplog.records) == hours, "said again, and not each time"
    actor.close()
    assert transport.endpoint in caplog.text
    assert "for 1 s" in caplog.text
    return caplog.text


def test_a_revoked_actor_gives_up(learner: ZmqLearnerLink) -> None:
    transport = admitted(learner, PEER)
    learner.revoke(PEER)
    actor = transport.connect(PEER)
    actor.hello(make_hello())
    reasons: list[str] = []

    def gave_up() -> bool:
        learner.poll(0.0)
        try:
            assert not actor.hello(make_hello())
        except Refused as error:
            reasons.append(str(error))
        return bool(reasons)

    wait_until(gave_up, DEADLINE_S, "an actor to give up")
    actor.close()
    assert "revoked or belongs to another run" in reasons[0]
    assert transport.endpoint in reasons[0]


def test_error_of_an_actor_with_another_learner_names_likely_causes(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    transport = replace(admitted(learner, PEER), curve=Curve.make(Curve.make().public))
    with silent_learner():
        assert "or belongs to another run" in silence(learner, transport, caplog, "aborted")


@contextmanager
def silent_learner() -> Iterator[None]:
    """Keep what the learner logs of strangers out of what the test looks at."""
    log = logging.getLogger("asyncrl.transport.zeromq_auth")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


@pytest.mark.fault("F16")
def test_actor_with_a_silent_learner_warns(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    assert "reachable but busy" in silence(None, admitted(learner, PEER), caplog, "connected")


def test_actor_without_a_learner_warns(
    learner: ZmqLearnerLink, caplog: pytest.LogCaptureFixture
) -> None:
    transport = admitted(learner, PEER)
    learner.close()
    assert "no connection is accepted" in silence(None, transport, caplog, "")


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


def test_actors_of_this_host_reach_a_learner_on_every_network() -> None:
    config = replace(CONFIG, bind="tcp://0.0.0.0", bind_every_interface=True)
    learner = ZmqTransport.of(Path("/nowhere"), schema=SCHEMA, config=config).listen()
    transport = admitted(learner, PEER)
    assert transport.endpoint.startswith("tcp://127.0.0.1:")
    actor = transport.connect(PEER)
    serve_one(learner, actor)
    actor.close()
    learner.close()


def test_without_encryption_there_is_no_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "curve")
    with pytest.raises(ConfigError, match="without encryption"):
        ZmqTransportConfig(bind="tcp://127.0.0.1")


def test_nothing_but_the_named_address_is_listened_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    link = ZmqTransport.of(tmp_path, schema=SCHEMA, config=ZmqTransportConfig()).listen()
    assert psutil.Process().net_connections(kind="inet") == []
    link.close()
    tcp = open_learner()
    port = int(tcp.address.endpoint.rpartition(":")[2])  # type: ignore[attr-defined]
    found = psutil.Process().net_connections(kind="inet")
    assert [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN] == [
        ("127.0.0.1", port)
    ]
    tcp.close()


# --- sockets -------------------------------------------------------------------------------------


def test_encryption_is_never_without_authentication(learner: ZmqLearnerLink) -> None:
    link = learner._socket
    assert link.getsockopt(zmq.MECHANISM) == zmq.CURVE
    assert link.getsockopt(zmq.CURVE_SERVER) == 1
    assert link.getsockopt(zmq.ZAP_DOMAIN)
    assert link.getsockopt(zmq.ZAP_ENFORCE_DOMAIN) == 1
    assert link.getsockopt(zmq.HEARTBEAT_IVL) > 0
    actor = admitted(learner, PEER).connect(PEER)
    assert 0 < actor._socket.getsockopt(zmq.CONNECT_TIMEOUT) <= 3000, "or it outlasts a partition"
    actor.close()


def test_an_old_libzmq_is_refused() -> None:
    with pytest.raises(ImportError, match=r"4\.3\.5"):
        check_libzmq((4, 3, 4))
    check_libzmq((4, 3, 5))
    check_libzmq(zmq.zmq_version_info())
