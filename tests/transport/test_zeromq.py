from __future__ import annotations

import logging
import os
import random
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from asyncrl.core.errors import ConfigError, Refused, TransportError, WireError
from asyncrl.core.messages import Experience, Peer
from asyncrl.transport.protocol import Finish
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq import ZmqActorLink, ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_socket import MAX_FRAMES, routing_id, routing_prefix
from tests.support import scale
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_peer,
    make_report,
)

CONFIG = ZmqTransportConfig(max_message_bytes=1 << 16, request_interval_s=0.05)
DEADLINE_S = 60.0


@pytest.fixture
def directory() -> Iterator[Path]:
    # Paths of sockets are limited to 103 bytes, and pytest's directories are long.
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def learner(directory: Path) -> Iterator[ZmqLearnerLink]:
    link = ZmqTransport.ipc(directory, schema=SCHEMA, config=CONFIG).listen()
    yield link
    link.close()


@pytest.fixture
def actor(learner: ZmqLearnerLink) -> Iterator[ZmqActorLink]:
    """An honest actor that has been let in."""
    link = connect(learner)
    link.hello(make_hello())
    until(learner, lambda: link.send(make_experience(1), 0.0))
    until(learner, lambda: link.drain(0.0) or learner.acknowledge(PEER, 1))
    yield link
    link.close()


@pytest.fixture
def stranger(learner: ZmqLearnerLink) -> Iterator[zmq.Socket[bytes]]:
    """A process of the same user that is not part of the run."""
    with raw(address(learner)) as link:
        yield link


def address(learner: ZmqLearnerLink) -> ZmqTransport:
    assert isinstance(learner.address, ZmqTransport)
    return learner.address


def connect(learner: ZmqLearnerLink, peer: Peer = PEER) -> ZmqActorLink:
    return address(learner).connect(peer)


def raw(to: ZmqTransport, name: bytes = b"") -> Any:
    class Raw:
        def __enter__(self) -> zmq.Socket[bytes]:
            self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self.socket = self.context.socket(zmq.DEALER)
            self.socket.setsockopt(zmq.LINGER, 0)
            if name:
                self.socket.setsockopt(zmq.ROUTING_ID, name)
            self.socket.connect(to.endpoint)
            return self.socket

        def __exit__(self, *_: object) -> None:
            self.socket.close()
            self.context.term()

    return Raw()


def until(learner: ZmqLearnerLink, condition: Callable[[], Any]) -> list[Any]:
    """Let the learner work until a condition holds; return what it received meanwhile."""
    received: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time; {learner.counters}"
        received += learner.poll(0.02)
    return received


def wire_of(transport: ZmqTransport) -> WireFormat:
    return WireFormat(schema=transport.schema, run_id=transport.run_id)


def goes_on(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    """Check that an honest actor is still served."""
    message = make_experience(2)
    assert actor.send(message, DEADLINE_S)
    received: list[Any] = []
    until(learner, lambda: received or received.extend(learner.poll(0.02)))
    assert [m.seq for m in received if isinstance(m, Experience)] == [2]
    learner.acknowledge(PEER, 2)
    until(learner, lambda: actor.drain(0.0))


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:1", "ipc://@x", "inproc://x"]
)
def test_nothing_is_opened_to_others(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="authentication"):
        ZmqTransport(endpoint, schema=SCHEMA)


@pytest.mark.fault("F27")
@pytest.mark.parametrize(
    "bound",
    [
        lambda port: ZmqTransport.loopback(port, schema=SCHEMA),
        lambda port: ZmqTransport.tcp(f"tcp://127.0.0.1:{port}", schema=SCHEMA, config=CONFIG),
    ],
    ids=["loopback", "curve"],
)
def test_a_port_in_use_is_named(bound: Callable[[int], ZmqTransport]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"{port}.*in use; another program has this port"):
            bound(port).listen()


def test_an_address_of_another_machine_is_refused_with_advice() -> None:
    elsewhere = ZmqTransport.tcp("tcp://192.0.2.1", schema=SCHEMA, config=CONFIG)
    with pytest.raises(TransportError, match=r"no network of this machine has.*advertise"):
        elsewhere.listen()


@pytest.mark.fault("F27")
def test_a_path_in_use_is_not_stolen(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    with pytest.raises(TransportError, match="exists"):
        address(learner).listen()
    goes_on(learner, actor)


def test_without_ipc_it_is_loopback(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "ipc")
    transport = ZmqTransport.ipc(directory, schema=SCHEMA)
    assert transport.endpoint == "tcp://127.0.0.1:*"


def test_a_directory_that_cannot_work_is_refused(directory: Path) -> None:
    (directory / "open").mkdir(0o750)
    for name, reason in (("missing", "cannot be used"), ("x" * 110, "longer"), ("open", "0700")):
        with pytest.raises(ConfigError, match=reason):
            ZmqTransport.ipc(directory / name, schema=SCHEMA).listen()


def test_the_socket_file_is_private_and_goes_with_the_link(directory: Path) -> None:
    link = ZmqTransport.ipc(directory, schema=SCHEMA).listen()
    (path,) = directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link.close()
    assert not path.exists()


@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="needs Linux and a second user to become"
)
def test_another_user_is_not_let_in_even_if_the_path_is_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    learner = ZmqTransport.ipc(tmp_path, schema=SCHEMA).listen()
    path = Path(address(learner).endpoint.removeprefix("ipc://"))
    path.chmod(0o666)
    tmp_path.chmod(0o711)
    code = (
        "import os, sys, zmq\n"
        "os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "context = zmq.Context(); socket = context.socket(zmq.DEALER); socket.linger = 500\n"
        "events = socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)\n"
        "socket.connect('ipc://learner'); socket.send(b'hello')\n"
        "seen = [zmq.utils.monitor.recv_monitor_message(events)['event'] for _ in range(2)]\n"
        "print(seen == [zmq.EVENT_CONNECTED, zmq.EVENT_DISCONNECTED], flush=True); os._exit(0)\n"
    )
    command = [sys.executable, "-c", "import zmq.utils.monitor\n" + code, str(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.stdout.strip() == "True", done.stderr
    assert learner.poll(0.05) == []
    assert learner.counters == {}
    learner.close()


# --- sockets -------------------------------------------------------------------------------------


def test_every_socket_has_its_limits(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    for link, largest in (
        (learner._socket, CONFIG.max_message_bytes),
        (actor._socket, CONFIG.max_model_bytes),
    ):
        assert link.getsockopt(zmq.MAXMSGSIZE) == largest
        assert 0 < link.getsockopt(zmq.HANDSHAKE_IVL) <= 3000
        assert 0 <= link.getsockopt(zmq.LINGER) <= 200
        assert link.getsockopt(zmq.SNDTIMEO) == link.getsockopt(zmq.RCVTIMEO) == 0


@pytest.mark.fault("F24")
def test_a_learner_does_not_begin_with_its_descriptors_almost_spent(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = len(list(Path("/dev/fd").iterdir()))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 10, used + 10))
    said = rf"of the {used + 10} files that this process may open are in use.*\(ulimit -n\)"
    with pytest.raises(TransportError, match=said):
        ZmqTransport.ipc(directory, schema=SCHEMA, config=CONFIG).listen()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    ZmqTransport.ipc(directory, schema=SCHEMA, config=CONFIG).listen().close()


@pytest.mark.fault("F38")
def test_links_are_of_no_use_in_a_process_forked_from_theirs(
    learner: ZmqLearnerLink, actor: ZmqActorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does such a process take them from the one that made them."""
    words = f"made in process {os.getpid()} is used in another"
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        for use in (
            lambda: learner.poll(0.0),
            lambda: learner.acknowledge(PEER, 1),
            lambda: actor.send(make_experience(2), 0.0),
            lambda: actor.latest_model("act", -1),
        ):
            with pytest.raises(TransportError, match=words):
                use()
        actor.close()
        learner.close()
    goes_on(learner, actor)


# --- hostile and broken peers --------------------------------------------------------------------


@pytest.mark.fault("F22")
def test_noise_is_counted_and_honest_actors_continue(
    learner: ZmqLearnerLink,
    actor: ZmqActorLink,
    stranger: zmq.Socket[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The same each time: now and then chance writes the beginning of another protocol's message.
    chance = random.Random(0)
    noise = [[chance.randbytes(n) for _ in range(1 + n % 5)] for n in range(100)]
    with caplog.at_level(logging.WARNING):
        for frames in [[b""], *noise]:
            stranger.send_multipart(frames)
        received = until(learner, lambda: learner.counters.get("malformed") == 101)
    assert received == []
    assert len(caplog.records) == 1, "one line for a flood, not one for each message"
    goes_on(learner, actor)


def test_a_message_of_endless_frames_is_thrown_away(
    learner: ZmqLearnerLink, actor: ZmqActorLink, stranger: zmq.Socket[bytes]
) -> None:
    stranger.send_multipart([b"x"] * (4 * MAX_FRAMES))
    until(learner, lambda: learner.counters.get("malformed") == 1)
    goes_on(learner, actor)


def test_a_model_too_large_is_refused_where_it_is_published(directory: Path) -> None:
    config = ZmqTransportConfig(max_model_bytes=16)
    learner = ZmqTransport.ipc(directory, schema=SCHEMA, config=config).listen()
    with pytest.raises(WireError, match="max_model_bytes = 16"):
        learner.publish(make_model(1), "act")
    learner.close()


@pytest.mark.fault("F22")
@pytest.mark.parametrize("of_a_learner", [False, True])
def test_actor_that_sends_malformed_messages_is_refused(
    learner: ZmqLearnerLink, actor: ZmqActorLink, *, of_a_learner: bool
) -> None:
    actor._put(wire_of(address(learner)).encode(Finish()) if of_a_learner else [b"nonsense"])
    until(learner, lambda: learner.counters.get("malformed") == 1)
    with pytest.raises(Refused, match="could not read a message"):
        actor.latest_model("act", -1, DEADLINE_S)


@pytest.mark.fault("F22")
def test_peer_cannot_send_in_the_name_of_another(
    learner: ZmqLearnerLink, actor: ZmqActorLink
) -> None:
    transport = address(learner)
    frames = [bytes(frame) for frame in wire_of(transport).encode(make_experience(2))]
    other = routing_id(routing_prefix(transport.run_id), make_peer(9))
    with raw(transport, other) as thief:
        thief.send_multipart(frames)
        until(learner, lambda: learner.counters.get("malformed") == 1)
    goes_on(learner, actor)


@pytest.mark.timeout(600)
@pytest.mark.fault("F26")
@pytest.mark.parametrize(
    ("run_id", "incarnation", "reason"), [("", 0, "stale"), ("the run before", 1, "foreign_run")]
)
def test_nothing_of_the_past_is_handed_on_however_much_it_is(
    learner: ZmqLearnerLink, run_id: str, incarnation: int, reason: str
) -> None:
    """It comes without pause, from an earlier incarnation or run, and does not wait for credit."""
    now, past = make_peer(incarnation=1), make_peer(incarnation=incarnation)
    actor = connect(learner, now)
    actor.hello(make_hello(now))
    until(learner, lambda: actor.send(make_report(now), 0.0))
    until(learner, lambda: actor.drain(0.0))
    run_id = run_id or address(learner).run_id
    wire = WireFormat(schema=SCHEMA, run_id=run_id)
    with raw(address(learner), routing_id(routing_prefix(run_id), past)) as ghost:
        for first in range(0, 50_000 if scale.full else 300, 50):
            for seq in range(first, first + 50):
                ghost.send_multipart(wire.encode(make_experience(seq + 1, past)))
            wanted = first + 50
            assert until(learner, lambda n=wanted: learner.counters.get(reason, 0) >= n) == []  # type: ignore[misc]
    actor.close()


def test_a_peer_that_is_gone_is_no_error(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    until(learner, lambda: actor.latest_model("act", -1, 0.02) is None)
    assert actor.send(make_experience(2), 0.0)
    until(learner, lambda: True)
    received: list[Any] = []
    until(learner, lambda: received or received.extend(learner.poll(0.02)))
    actor.close()

    def is_gone() -> bool:
        learner.refuse(PEER, "anybody there?")
        return "undelivered" in learner.counters

    until(learner, is_gone)
    learner.publish(make_model(1), "act")
    learner.acknowledge(PEER, 2)
    learner.stop_actors()
    assert learner.poll(0.0) == []
    before = learner.counters["undelivered"]
    learner.revoke(PEER)
    learner.refuse(PEER, "anybody there?")
    assert learner.counters["undelivered"] == before, "it is known to be gone"


# --- what is said again --------------------------------------------------------------------------


@pytest.fixture
def timeless(learner: ZmqLearnerLink) -> Iterator[tuple[ZmqActorLink, list[float]]]:
    """An actor, and its clock, which stands still unless a test moves it."""
    now_s, to = [0.0], address(learner)
    link = ZmqActorLink(to.endpoint, wire_of(to), CONFIG, PEER, clock=lambda: now_s[0])
    yield link, now_s
    link.close()


@pytest.fixture
def greeted(learner: ZmqLearnerLink, timeless: tuple[ZmqActorLink, list[float]]) -> ZmqActorLink:
    """An actor whose clock stands still, and whose hello has been answered."""
    actor, _ = timeless
    until(learner, lambda: actor.hello(make_hello()))
    return actor


def test_hello_is_repeated_at_its_interval(
    learner: ZmqLearnerLink, timeless: tuple[ZmqActorLink, list[float]]
) -> None:
    actor, now_s = timeless
    for _ in range(10):
        assert not actor.hello(make_hello())
    now_s[0] += 2 * CONFIG.request_interval_s
    for _ in range(10):
        assert not actor.hello(make_hello())
    received = until(learner, lambda: actor.hello(make_hello()))
    # The answer to the first one may be here before the second one is there.
    until(learner, lambda: len(received) > 1 or received.extend(learner.poll(0.02)))
    assert len(received + learner.poll(0.02)) == 2


@contextmanager
def losing(learner: ZmqLearnerLink) -> Iterator[None]:
    """Lose all that the learner sends in this block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(learner, "_send_frames", lambda *_: None)
        yield


def is_refused(link: ZmqActorLink) -> bool:
    try:
        link.stopping()
    except Refused:
        return True
    return False


@pytest.mark.fault("F31")
def test_a_lost_refusal_is_sent_again(
    learner: ZmqLearnerLink, timeless: tuple[ZmqActorLink, list[float]]
) -> None:
    actor, now_s = timeless
    until(learner, lambda: actor.hello(make_hello()))
    assert actor.send(make_experience(1), 0.0)
    with losing(learner):
        learner.refuse(PEER, "it rains")
        until(learner, lambda: learner.counters.get("refused") == 1)
    assert not is_refused(actor)
    now_s[0] += 2 * CONFIG.request_interval_s  # now it asks what has become of its experience
    until(learner, lambda: is_refused(actor))


def test_a_model_that_an_acknowledgement_has_overtaken_is_asked_for_again(
    learner: ZmqLearnerLink, greeted: ZmqActorLink
) -> None:
    """As often as it gets lost; an acknowledgement that reports no new loss asks for none."""

    def sends(seq: int) -> None:
        assert greeted.send(make_experience(seq), 0.0)
        until(learner, lambda: greeted.drain(0.0) or learner.acknowledge(PEER, seq))

    learner.publish(make_model(3), "act")
    for lost in (1, 2):
        assert greeted.latest_model("act", -1) is None  # asks for one
        with losing(learner):
            until(learner, lambda lost=lost: learner._table.ack(PEER).models == lost)
        sends(lost)
    until(learner, lambda: greeted.latest_model("act", -1))
    sends(3)
    assert greeted._requested_at, "the request for the one after it stands"


@pytest.mark.fault("F31")
def test_a_model_that_takes_long_is_not_sent_again(
    learner: ZmqLearnerLink,
    timeless: tuple[ZmqActorLink, list[float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often it is asked for meanwhile, and however many newer ones there are."""
    actor, now_s = timeless
    until(learner, lambda: actor.hello(make_hello()))
    send, under_way = learner._send_frames, []
    with monkeypatch.context() as slow:
        slow.setattr(learner, "_send_frames", lambda *sent: under_way.append(sent))
        for asked in range(12):
            learner.publish(make_model(asked), "act")
            assert not has_model(actor, now_s)
            until(learner, lambda asked=asked: len(under_way) > asked)
    assert models_sent(learner) == 1
    for sent in under_way:
        send(*sent)
    until(learner, lambda: actor.latest_model("act", -1))
    until(learner, lambda: actor.latest_model("act", 10))
    until(learner, lambda: learner._requests)
    assert models_sent(learner) == 2, "the one that took long, and the newest after it"


def has_model(actor: ZmqActorLink, now_s: list[float]) -> bool:
    """Whether an actor whose wait ended in another request has received a model."""
    now_s[0] += 2 * CONFIG.request_interval_s
    return actor.latest_model("act", -1) is not None


def models_sent(learner: ZmqLearnerLink) -> int:
    return learner._table.ack(PEER).models


# --- models --------------------------------------------------------------------------------------


def test_all_actors_are_sent_the_same_copy(learner: ZmqLearnerLink) -> None:
    learner.publish(make_model(1), "act")
    frames = learner._models["act"][1]
    assert isinstance(frames[1], zmq.Frame)
