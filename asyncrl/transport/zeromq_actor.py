"""An actor's end of the ZeroMQ transport. Decides nothing about experience or models.

Every call first handles what has arrived, which costs about a microsecond if nothing has.

A link lives as long as its connection. If that breaks, libzmq makes a new one, and silently loses
what was in flight; so the link raises `ConnectionLost`, its actor ends, and the manager starts the
next incarnation. Until learner and actor have agreed on a connection, libzmq tries again, and
nothing is lost.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import cast

import zmq

from asyncrl.core.errors import (
    ConnectionLost,
    Refused,
    TransportClosed,
    TransportError,
    WireError,
)
from asyncrl.core.messages import EnvChange, Experience, Hello, ModelInfo, Peer, Report
from asyncrl.core.transport import Topic
from asyncrl.transport.protocol import (
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    Refusal,
    Request,
    Subject,
    newest_with_credit,
)
from asyncrl.transport.wire import Frame, WireFormat, WireMessage
from asyncrl.transport.zeromq_auth import ConnectionLog
from asyncrl.transport.zeromq_socket import (
    Curve,
    ZmqTransportConfig,
    make_actor_socket,
    poller_of,
    receive,
    routing_id,
    routing_prefix,
)

_log = logging.getLogger(__name__)
_READABLE = int(zmq.POLLIN)  # as an enum, an operation on it takes a microsecond
_SILENCE_WARNING_S = 60.0
"""Seconds after which an actor whose `Hello` got no reply logs the likely reason. It keeps waiting,
since the learner may be stopped; its manager ends actors that cannot connect to a running
learner."""

_LOOK_S = 1.0
"""Seconds after which an actor that never waits checks whether its connection is still there."""


class ZmqActorLink:
    """One actor's connection. Must be used by one thread of the process that made it."""

    def __init__(
        self,
        endpoint: str,
        wire: WireFormat,
        config: ZmqTransportConfig,
        peer: Peer,
        clock: Callable[[], float] = time.monotonic,
        *,
        curve: Curve | None = None,
    ) -> None:
        self._wire = wire
        self._config = config
        self._peer = peer
        self._clock = clock
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = routing_id(routing_prefix(wire.run_id), peer, curve.public if curve else b"")
        self._endpoint = endpoint
        self._socket = make_actor_socket(self._context, endpoint, name, config, curve)
        self._connections = ConnectionLog(self._socket)
        self._socket.connect(endpoint)
        self._events = cast(Callable[[], int], partial(self._socket.getsockopt, zmq.EVENTS))
        self._poller = poller_of(self._connections.socket)
        self._look_at = 0.0
        self._warn_at = float("inf")
        self._has_introduced = self._welcomed = self._finish = False
        self._refusal: str | None = None
        self._sent = self._acknowledged = self._granted = 0
        self._reports = self._reports_read = 0
        self._newest: dict[Subject, Delivery | EnvDelivery] = {}
        self._requested: set[Subject] = set()

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        """Introduce this actor; False if the learner has not answered within `timeout_s`."""
        self._handle_arrived()
        if not self._has_introduced:
            self._has_introduced = self._put(self._wire.encode(message))
            self._warn_at = self._clock() + _SILENCE_WARNING_S
        deadline = self._clock() + timeout_s
        while not self._welcomed:
            self._check_silence()
            if not self._wait(deadline):
                return False
            self._handle_arrived()
        return True

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        """Wait until message `seq` is granted; False after `timeout_s` or if a model came first."""
        if seq <= self._granted:  # at each step: without reading the socket
            return True
        self._handle_arrived()
        deadline = self._clock() + timeout_s
        while seq > self._granted:
            if not self._wait(deadline):
                return False
            self._handle_arrived()
            if seq > self._granted and "act" in self._newest:
                return False
        return True

    def send(self, message: Experience | Report, timeout_s: float) -> bool:
        """Send, or return False if there was no credit within `timeout_s` (reports need none).

        The arrays are copied before it returns. Raises `Refused` if the learner has refused this
        actor, and `ConnectionLost` if the connection broke.
        """
        if not isinstance(message, Experience):
            message = replace(message, seq=self._reports + 1)
        deadline = self._clock() + timeout_s
        while True:
            self._handle_arrived()
            credit = self._has_credit(message)
            # The arrays are copied into libzmq's own memory. Zero-copy needs a thread that waits
            # for their return, and was no faster at any size of experience.
            if credit and self._put(self._wire.encode(message)):
                break
            if not self._wait(deadline, zmq.POLLIN | (zmq.POLLOUT if credit else 0)):
                return False
        if isinstance(message, Experience):
            self._sent = message.seq
        else:
            self._reports = message.seq
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        """Return the newest model if its version is above `newer_than`; never an older one."""
        deadline: float | None = None
        while True:
            if news := self._take(topic, newer_than):
                return cast(Delivery, news).model
            if timeout_s <= 0:
                return None
            deadline = deadline or self._clock() + timeout_s
            if not self._wait(deadline):
                return None

    def env_change(self, newer_than: int) -> EnvChange | None:
        """Return the newest change if its number is above `newer_than`; does not wait."""
        news = self._take("env", newer_than)
        if not isinstance(news, EnvDelivery):
            return None
        return EnvChange(number=news.number, kwargs=json.loads(news.kwargs))

    def stopping(self) -> bool:
        """Whether the learner has asked its actors to finish."""
        self._handle_arrived()
        return self._finish

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was sent is acknowledged, and the learner has read the reports."""
        deadline = self._clock() + timeout_s
        while True:
            self._handle_arrived()
            if self._acknowledged >= self._sent and self._reports_read >= self._reports:
                return True
            if not self._wait(deadline):
                return False

    def close(self) -> None:
        """Close the link; what was not drained may be lost. May be called again."""
        if not self._socket.closed and os.getpid() == self._pid:
            self._connections.close()
            self._socket.close(0)
            self._context.term()

    def _take(self, subject: Subject, newer_than: int) -> Delivery | EnvDelivery | None:
        """Return what has arrived of a subject if it is newer; request what comes after it."""
        self._handle_arrived()
        news = self._newest.pop(subject, None)
        if subject not in self._requested:
            have = max(news.number, newer_than) if news else newer_than
            if self._put(self._wire.encode(Request(self._peer, subject, have))):
                self._requested.add(subject)
        return news if news and news.number > newer_than else None

    def _handle_arrived(self) -> None:
        """Handle all that has arrived, then raise if this link can no longer be used."""
        if self._socket.closed:
            raise TransportClosed(f"the link of {self._peer} is closed")
        if os.getpid() != self._pid:
            raise TransportError(f"a link made in process {self._pid} is used in another")
        # Reading the events costs half of a receive that finds nothing.
        while self._events() & _READABLE:
            frames = receive(self._socket)
            if frames is None:
                break
            self._on(self._wire.decode([frame.buffer for frame in frames]))
        if self._refusal is not None or self._clock() >= self._look_at:
            self._check_connection()

    def _on(self, message: WireMessage) -> None:
        match message:
            case Ack():
                self._welcomed = True
                self._acknowledged = max(self._acknowledged, message.seq)
                self._granted = max(self._granted, message.granted)
                self._reports_read = max(self._reports_read, message.reports)
            case Delivery() | EnvDelivery():
                self._newest[message.subject] = message
                self._requested.discard(message.subject)
            case Finish():
                self._finish = True
            case Refusal(reason):
                self._refusal = reason
            case _:
                raise WireError(f"a learner does not send {type(message).__name__}")

    def _check_connection(self) -> None:
        """Raise if the connection broke, or the learner refuses this actor or its key.

        In this order: what follows a break may be refused, as it has gaps.
        """
        self._look_at = self._clock() + _LOOK_S
        self._connections.read()
        if self._connections.is_broken:
            raise ConnectionLost(f"{ConnectionLost.START}{self._endpoint} broke")
        if self._connections.counts["denied"]:
            raise Refused(
                f"the learner at {self._endpoint} does not accept the key of {self._peer}, which "
                "was revoked or belongs to another run"
            )
        if self._refusal is not None:
            raise Refused(self._refusal)

    def _check_silence(self) -> None:
        """Log at intervals the likely reason why the learner does not answer."""
        if (now := self._clock()) >= self._warn_at:
            self._warn_at = now + _SILENCE_WARNING_S
            _log.warning(
                "the learner at %s has not answered %s for %g s; %s",
                self._endpoint,
                self._peer,
                _SILENCE_WARNING_S,
                self._connections.why_silent(),
            )

    def _has_credit(self, message: Experience | Report) -> bool:
        if not isinstance(message, Experience):
            return True
        credit = newest_with_credit(self._granted, self._acknowledged, self._config.window)
        return self._welcomed and message.seq <= credit

    def _put(self, frames: Sequence[Frame]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _wait(self, deadline: float, events: int = zmq.POLLIN) -> bool:
        """Wait for an event of the socket or the connection; return False after the deadline."""
        self._look_at = 0.0
        left = deadline - self._clock()
        if left <= 0:
            return False
        self._poller.register(self._socket, events)
        self._poller.poll(ceil(left * 1000))
        return True
