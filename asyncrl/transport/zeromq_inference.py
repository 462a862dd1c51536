"""Requests of actors to a server of inference over TCP. Does not know what is computed.

They have separate sockets, and so do not wait behind experience and models. On one machine,
`unix_inference.py` takes half of the time.

A request or an answer may be lost with its connection. The actor then asks again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

import zmq

from asyncrl.core.errors import TransportClosed, WireError
from asyncrl.core.inference import InferenceAnswer, InferenceRequest
from asyncrl.core.messages import Peer
from asyncrl.transport.inference_wire import InferenceWire
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq_auth import Authenticator, RejectionLog
from asyncrl.transport.zeromq_socket import (
    Curve,
    ZmqTransportConfig,
    listen,
    make_actor_socket,
    make_learner_socket,
    receive,
    routing_id,
    routing_prefix,
)

_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 1024

_ACTORS = "actors"
"""All actors of a run have the same key: they learn nothing from each other's answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqInferenceAddress:
    """Where a server of inference listens, and the settings that both sides must share."""

    endpoint: str
    wire: WireFormat
    config: ZmqTransportConfig
    server_curve: Curve | None = None
    actor_curve: Curve | None = None

    @classmethod
    def beside(
        cls, endpoint: str, wire: WireFormat, config: ZmqTransportConfig, *, encrypted: bool
    ) -> Self:
        """Return an address beside that of a learner: a free port of its host.

        A port is chosen now, so that a server that replaces another one listens on the same.
        """
        host = endpoint.rpartition(":")[0]
        endpoint = f"{host}:{_free_port(host.removeprefix('tcp://').strip('[]'))}"
        address = cls(endpoint=endpoint, wire=wire, config=config)
        if not encrypted:
            return address
        server = Curve.make()
        return replace(address, server_curve=server, actor_curve=Curve.make(server.public))

    def listen(self) -> ZmqInferenceListener:
        """Open the server's end."""
        return ZmqInferenceListener(self)

    def connect(self, peer: Peer) -> ZmqInferenceClient:
        """Open an actor's end; the server need not listen yet."""
        return ZmqInferenceClient(self, peer)


class ZmqInferenceClient:
    """An actor's connection to the server. Must be used by one thread."""

    def __init__(self, address: ZmqInferenceAddress, peer: Peer) -> None:
        self._wire = InferenceWire(address.wire)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = routing_id(routing_prefix(address.wire.run_id), peer)
        self._socket = make_actor_socket(
            self._context, address.endpoint, name, address.config, address.actor_curve
        )
        self._socket.connect(address.endpoint)

    def send(self, request: InferenceRequest) -> None:
        """Send a request; it is lost if a thousand others wait for a connection."""
        self._check_usable()
        try:
            self._socket.send_multipart(self._wire.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            _log.debug("request %d is not sent: the server does not read", request.number)

    def receive(self, timeout_s: float) -> InferenceAnswer | None:
        """Return the next answer, or None if there was none within `timeout_s`."""
        self._check_usable()
        if not self._socket.poll(ceil(timeout_s * 1000)):
            return None
        frames = receive(self._socket)
        if frames is None:
            return None
        message = self._wire.decode([frame.buffer for frame in frames])
        if not isinstance(message, InferenceAnswer):
            raise WireError(f"a server of inference does not send {type(message).__name__}")
        return message

    def close(self) -> None:
        """Close the connection; may be called again."""
        if not self._socket.closed:
            self._socket.close(0)
            self._context.term()

    def _check_usable(self) -> None:
        if self._socket.closed:
            raise TransportClosed("this connection to the server of inference is closed")


class ZmqInferenceListener:
    """The server's socket. Must be used by one thread."""

    def __init__(self, address: ZmqInferenceAddress) -> None:
        self._wire = InferenceWire(address.wire)
        self._prefix = routing_prefix(address.wire.run_id)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        curve, actors = address.server_curve, address.actor_curve
        try:
            # In this order: the socket is never open without an authenticator.
            self._auth = Authenticator(self._context, curve.server) if curve else None
            if self._auth and actors:
                self._auth.allow(actors.public, _ACTORS)
            most = self._wire.max_body_bytes
            self._socket = make_learner_socket(
                self._context,
                address.endpoint,
                replace(address.config, max_message_bytes=most),
                curve,
            )
            listen(self._socket, address.endpoint)
        except Exception:
            self._context.destroy(0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if self._auth:
            self._poller.register(self._auth.socket, zmq.POLLIN)
        self._pid = os.getpid()
        self._dropped = Counter[str]()
        self._rejections = RejectionLog(self._dropped, time.monotonic)

    def receive(self, timeout_s: float) -> list[InferenceRequest]:
        """Return the requests that have arrived; wait for one at most `timeout_s`."""
        if self._socket.closed:
            raise TransportClosed("this server of inference is closed")
        self._poller.poll(ceil(timeout_s * 1000))
        if self._auth:
            self._auth.answer()
        requests = []
        for _ in range(_MOST_AT_ONCE):
            frames = receive(self._socket)
            if frames is None:
                break
            if request := self._read(frames):
                requests.append(request)
        return requests

    def answer(self, peer: Peer, answer: InferenceAnswer) -> None:
        """Send an answer, or drop it if the actor is gone."""
        name = routing_id(self._prefix, peer)
        try:
            self._socket.send_multipart([name, *self._wire.encode(answer)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise

    def close(self) -> None:
        """Close all connections; may be called again."""
        if self._socket.closed or os.getpid() != self._pid:
            return
        self._socket.close()
        if self._auth:
            self._auth.close()
        self._context.term()

    def _read(self, frames: list[zmq.Frame]) -> InferenceRequest | None:
        """Decode a request; count and drop what is none."""
        name = frames[0].bytes
        try:
            message = self._wire.decode([frame.buffer for frame in frames[1:]])
        except WireError as error:
            self._rejections.note("malformed", str(error))
            return None
        if isinstance(message, InferenceRequest) and name == routing_id(self._prefix, message.peer):
            return message
        self._rejections.note("malformed", f"{type(message).__name__} from a peer of another name")
        return None


def _free_port(host: str) -> int:
    """Return a port on which nothing listens now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
