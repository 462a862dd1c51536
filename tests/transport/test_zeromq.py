from __future__ import annotations

import itertools
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from asyncrl.core.errors import ConfigError, Refused, TransportError, WireError
from asyncrl.core.messages import Experience, Peer
from asyncrl.transport.protocol import Finish
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from asyncrl.transport.zeromq_socket import MAX_FRAMES, routing_id, routing_prefix
from tests.support import scale
from tests.support.intruders import until
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_peer,
    make_report,
)
from tests.transport.conftest import Keep

CONFIG = ZmqTransportConfig(max_message_bytes=1 << 16)
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


@contextmanager
def raw(to: ZmqTransport, name: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    """Give a socket of the library's own, with what it sends as its name."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        link.linger = 0
        if name:
            link.setsockopt(zmq.ROUTING_ID, name)
        link.connect(to.endpoint)
        yield link


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


def wire_of(transport: ZmqTransport) -> WireFormat:
    return WireFormat(schema=transport.schema, run_id=transport.run_id)


def goes_on(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    """Check that an honest actor is still served."""
    message = make_experience(2)
    assert actor.send(message, DEADLINE_S)
    received = until(learner, lambda: actor.drain(0.0) or learner.acknowledge(PEER, 2))
    assert [m.seq for m in received if isinstance(m, Experience)] == [2]


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


def test_a_message_of_endless_frames_is_thrown_away(
    learner: ZmqLearnerLink, actor: ZmqActorLink, stranger: zmq.Socket[bytes]
) -> None:
    stranger.send_multipart([b"x"] * (4 * MAX_FRAMES))
    until(learner, lambda: learner.counters.get("malformed") == 1)
    goes_on(learner, actor)


def test_a_model_too_large_is_refused_where_it_is_published(directory: Path, keep: Keep) -> None:
    config = ZmqTransportConfig(max_model_bytes=16)
    learner = keep(ZmqTransport.ipc(directory, schema=SCHEMA, config=config).listen())
    with pytest.raises(WireError, match="max_model_bytes = 16"):
        learner.publish(make_model(1), "act")


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
    learner: ZmqLearnerLink, keep: Keep, run_id: str, incarnation: int, reason: str
) -> None:
    """It comes without pause, from an earlier incarnation or run, and does not wait for credit."""
    now, past = make_peer(incarnation=1), make_peer(incarnation=incarnation)
    actor = keep(connect(learner, now))
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


def test_a_peer_that_is_gone_is_no_error(learner: ZmqLearnerLink, actor: ZmqActorLink) -> None:
    actor.close()
    granted = itertools.count(1)
    until(learner, lambda: learner.acknowledge(PEER, 0, next(granted)) or learner.counters)
    learner.publish(make_model(1), "act")
    learner.stop_actors()
    assert learner.poll(0.0) == []
    before = learner.counters["undelivered"]
    learner.revoke(PEER)
    learner.acknowledge(PEER, 0, next(granted))
    assert learner.counters["undelivered"] == before, "it is known to be gone"


# --- what is said again --------------------------------------------------------------------------


# --- models --------------------------------------------------------------------------------------
