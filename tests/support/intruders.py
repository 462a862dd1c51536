"""Peers that connect to an encrypted socket with what they have, and not with what they should."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from asyncrl.core.messages import Peer
from asyncrl.transport.wire import WireFormat, WireMessage
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport
from asyncrl.transport.zeromq_socket import Curve, routing_id, routing_prefix
from tests.support.attack import address_of, is_cut
from tests.support.helpers import wait_until
from tests.support.sample_messages import make_experience, make_hello, make_peer

SetKeys = Callable[["zmq.Socket[bytes]"], None]

NAME = make_peer(5)
"""Whose name intruders use."""

KINDS = ("null", "plain", "wrong server", "unknown", "stolen public", "revoked")
"""Of keys, or of none, that an `Intruder` may have."""

OLD_GREETINGS = {"ZMTP 1": b"\x01\x00", "ZMTP 2": b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00\x00"}
"""The greeting of a peer whose protocol has no keys."""

NO_HANDSHAKE = {"handshake_failed", "handshake_aborted"}
"""Counters of connections that were never authenticated."""


def turned_away(learner: ZmqLearnerLink) -> int:
    """Return the number of connections that were never authenticated."""
    return sum(learner.counters.get(reason, 0) for reason in NO_HANDSHAKE)


def until(learner: ZmqLearnerLink, condition: Callable[[], Any]) -> list[Any]:
    """Let the learner work until a condition holds; return what it received meanwhile."""
    received: list[Any] = []

    def holds() -> bool:
        received.extend(learner.poll(0.0))
        return bool(condition())

    wait_until(holds, 60.0, f"a condition; {learner.counters}")
    return received


class Intruder:
    """Says what an actor would say, with the keys it has."""

    def __init__(
        self, to: ZmqTransport, set_keys: SetKeys, messages: int = 2, key: bytes = b""
    ) -> None:
        """Connect, and send a `Hello` and then experience. `key` is a part of the name."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, routing_id(routing_prefix(to.run_id), NAME, key))
        set_keys(self._socket)
        self._socket.connect(to.endpoint)
        with suppress(zmq.Again):  # it may have been refused before it has said all
            for frames in _words(to, messages):
                self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Leave, with what could not be sent."""
        self._socket.close(0)
        self._context.term()


class Knocker:
    """Says what an actor would say, with a protocol too old for keys, or with none at all."""

    def __init__(self, to: ZmqTransport, greeting: bytes, messages: int = 2) -> None:
        """Connect, and send what an actor would send."""
        self._link = socket.create_connection(address_of(to))
        said = [greeting]
        for frames in _words(to, messages):
            for number, frame in enumerate(frames, start=1):
                flags = b"\x01" if number < len(frames) else b"\x00"
                size = bytes([len(frame)]) if len(frame) < 256 else b"\xff"
                said.append(flags + size + frame)
        with suppress(ConnectionError):  # it may be cut before it has said all
            self._link.sendall(b"".join(said))

    @property
    def is_cut(self) -> bool:
        """Whether the learner has hung up."""
        return is_cut(self._link)

    def close(self) -> None:
        """Leave."""
        self._link.close()


def admitted(learner: ZmqLearnerLink, peer: Peer) -> ZmqTransport:
    """Return what an actor is given."""
    transport = learner.admit(peer)
    assert isinstance(transport, ZmqTransport)
    return transport


def keys_of(transport: ZmqTransport) -> Curve:
    """Return the keys that are in an address."""
    assert transport.curve is not None
    return transport.curve


def no_keys(_: zmq.Socket[bytes]) -> None:
    """As a socket is that knows of no encryption at all: mechanism NULL."""


def curve(server: bytes, public: bytes, secret: bytes) -> SetKeys:
    """Return how a socket is given keys."""

    def set_keys(link: zmq.Socket[bytes]) -> None:
        link.setsockopt(zmq.CURVE_SERVERKEY, server)
        link.setsockopt(zmq.CURVE_PUBLICKEY, public)
        link.setsockopt(zmq.CURVE_SECRETKEY, secret)

    return set_keys


def wrong_keys(learner: ZmqLearnerLink, kind: str) -> SetKeys:
    """Return how a peer with the wrong keys sets up its socket."""
    server = keys_of(admitted(learner, make_peer(6))).server
    if kind == "null":
        return no_keys
    if kind == "plain":
        return _plain
    if kind == "unknown":
        return curve(server, *zmq.curve_keypair())
    good = keys_of(admitted(learner, NAME))
    if kind == "wrong server":
        return curve(zmq.curve_keypair()[0], good.public, good.secret)
    if kind == "stolen public":
        return curve(server, good.public, zmq.curve_keypair()[1])
    assert kind == "revoked", f"one of {KINDS}"
    learner.revoke(NAME)
    return curve(server, good.public, good.secret)


def close_authenticator(learner: ZmqLearnerLink) -> None:
    """Close the authenticator, as a bug might."""
    auth = learner._auth  # a fault inside
    assert auth is not None
    learner._poller.unregister(auth.socket)
    auth.close()
    auth.answer = lambda: None  # type: ignore[method-assign]


def _plain(link: zmq.Socket[bytes]) -> None:
    link.setsockopt(zmq.PLAIN_USERNAME, b"actor")
    link.setsockopt(zmq.PLAIN_PASSWORD, b"password")


def _words(to: ZmqTransport, messages: int) -> list[list[bytes]]:
    wire = WireFormat(schema=to.schema, run_id=to.run_id)
    said: list[WireMessage] = [make_hello(NAME)]
    said += [make_experience(seq, NAME) for seq in range(1, messages)]
    return [[bytes(frame) for frame in wire.encode(message)] for message in said]
