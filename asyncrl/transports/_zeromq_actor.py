"""An actor's end of the ZeroMQ transport. Decides nothing about experience or models.

Every call first takes in what has arrived, which costs about a microsecond when nothing has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import cast

import zmq

from asyncrl.errors import PeerSilent, Refused, TransportClosed, TransportError, WireError
from asyncrl.header import WireMessage
from asyncrl.messages import ActorReport, EvaluationReport, Experience, Hello, ModelInfo, Peer
from asyncrl.protocol import Ack, Delivery, Finish, ModelRequest, Refusal, Sync, Welcome
from asyncrl.transport import Topic
from asyncrl.transports._zeromq_socket import (
    ZmqTransportConfig,
    connect_actor,
    receive,
    routing_id,
    routing_prefix,
)
from asyncrl.wire import Frame, WireFormat

__all__ = ["ZmqActorLink"]


class ZmqActorLink:
    """One actor's connection. Belongs to one thread of the process that made it."""

    def __init__(
        self,
        endpoint: str,
        wire: WireFormat,
        config: ZmqTransportConfig,
        peer: Peer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._config = config
        self._peer = peer
        self._clock = clock
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = routing_id(routing_prefix(wire.run_id), peer)
        self._socket = connect_actor(self._context, endpoint, name, config)
        self._events = cast(Callable[[], int], partial(self._socket.getsockopt, zmq.EVENTS))
        self._poller = zmq.Poller()
        self._welcome_by: float | None = None
        self._welcomed = False
        self._refusal: str | None = None
        self._finish = False
        self._sent = 0
        self._acknowledged = 0
        self._token = 0
        self._token_returned = 0
        self._unsynced = False
        self._models: dict[Topic, ModelInfo] = {}
        self._requested_at: dict[Topic, float] = {}

    def hello(self, message: Hello) -> None:
        """Introduce oneself, without waiting for the answer."""
        self._take_in()
        self._welcome_by = self._clock() + self._config.silence_timeout_s
        self._put(self._wire.encode(message))

    def send(self, message: Experience | ActorReport | EvaluationReport, timeout_s: float) -> bool:
        """Send, or return False if there was no credit in time (reports need none).

        The arrays have been copied when it returns. Raises `PeerSilent` if the learner has not
        answered the `Hello` for too long, `Refused` if it has turned this actor away.
        """
        frames: list[Frame] = []
        deadline = self._clock() + timeout_s
        while True:
            self._take_in()
            credit = self._has_credit(message)
            if credit:
                frames = frames or self._wire.encode(message)
                if self._put(frames):
                    self._unsynced = True
                    break
            if not self._wait(deadline, zmq.POLLIN | (zmq.POLLOUT if credit else 0)):
                return False
        if isinstance(message, Experience):
            self._sent = message.seq
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        """Return the newest model if its version is above `newer_than`; never an older one."""
        deadline: float | None = None
        while True:
            self._take_in()
            model = self._models.pop(topic, None)
            if model is not None:
                self._request(topic, max(model.version, newer_than))
                if model.version > newer_than:
                    return model
            elif self._is_due(topic):
                self._request(topic, newer_than)
            if timeout_s <= 0:
                return None
            deadline = deadline or self._clock() + timeout_s
            if not self._wait(deadline, zmq.POLLIN):
                return None

    def stopping(self) -> bool:
        """Whether the learner has asked its actors to finish."""
        self._take_in()
        return self._finish

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was sent is acknowledged, and the learner has read the reports."""
        deadline = self._clock() + timeout_s
        while True:
            self._take_in()
            if self._unsynced and self._put(self._wire.encode(Sync(self._peer, self._token + 1))):
                self._token += 1
                self._unsynced = False
            synced = not self._unsynced and self._token_returned == self._token
            if synced and self._acknowledged >= self._sent:
                return True
            if not self._wait(deadline, zmq.POLLIN):
                return False

    def close(self) -> None:
        """Let go of the link; what has not been drained may be lost. May be called again."""
        if not self._socket.closed and os.getpid() == self._pid:
            self._socket.close(0)
            self._context.term()

    def _take_in(self) -> None:
        """Handle all that has arrived, then raise if this link is of no more use."""
        if self._socket.closed:
            raise TransportClosed(f"the link of {self._peer} is closed")
        if os.getpid() != self._pid:
            raise TransportError(f"a link made in process {self._pid} is used in another")
        # Asking for the events is half the price of a receive that finds nothing.
        while self._events() & zmq.POLLIN:
            frames = receive(self._socket)
            if frames is None:
                break
            self._on(self._wire.decode(frames))
        if self._refusal is not None:
            raise Refused(self._refusal)
        if not self._welcomed and self._welcome_by and self._clock() > self._welcome_by:
            raise PeerSilent(
                f"the learner did not answer {self._peer} within"
                f" {self._config.silence_timeout_s:g} s"
            )

    def _on(self, message: WireMessage) -> None:
        match message:
            case Ack(seq):
                self._acknowledged = max(self._acknowledged, seq)
            case Delivery(topic, model):
                held = self._models.get(topic)
                if held is None or model.version > held.version:
                    self._models[topic] = model
            case Welcome():
                self._welcomed = True
            case Finish():
                self._finish = True
            case Refusal(reason):
                self._refusal = reason
            case Sync(token=token):
                self._token_returned = max(self._token_returned, token)
            case _:
                raise WireError(f"a learner does not say {type(message).__name__}")

    def _has_credit(self, message: Experience | ActorReport | EvaluationReport) -> bool:
        if not isinstance(message, Experience):
            return True
        return self._welcomed and message.seq - self._acknowledged <= self._config.window

    def _is_due(self, topic: Topic) -> bool:
        asked = self._requested_at.get(topic)
        return asked is None or self._clock() - asked >= self._config.request_interval_s

    def _request(self, topic: Topic, have: int) -> None:
        self._put(self._wire.encode(ModelRequest(self._peer, topic, have)))
        self._requested_at[topic] = self._clock()

    def _put(self, frames: list[Frame]) -> bool:
        # Copied into libzmq's own memory: to lend it arrays costs a thread that watches for
        # their return, and was no faster at any size that experience has.
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _wait(self, deadline: float, events: int) -> bool:
        """Wait for an event; False if it is too late for that."""
        left = deadline - self._clock()
        if left <= 0:
            return False
        self._poller.register(self._socket, events)
        self._poller.poll(ceil(left * 1000))
        return True
