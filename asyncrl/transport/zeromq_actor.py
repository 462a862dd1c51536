"""An actor's end of the ZeroMQ transport. Decides nothing about experience or models.

Every call first handles what has arrived, which costs about a microsecond if nothing has.

After a broken connection libzmq makes a new one, and silently loses what was in flight. So
experience and reports are kept until they are acknowledged, and requests are repeated after a
timeout: the `Hello`, acknowledgements, models.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import cast

import zmq

from asyncrl.core.errors import Refused, TransportClosed, TransportError, WireError
from asyncrl.core.messages import EnvChange, Experience, Hello, ModelInfo, Peer, Report
from asyncrl.core.transport import Topic
from asyncrl.transport.protocol import (
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    Refusal,
    Request,
    Resend,
    Subject,
    Sync,
    Welcome,
    newest_with_credit,
)
from asyncrl.transport.wire import Frame, WireFormat, WireMessage
from asyncrl.transport.zeromq_auth import ConnectionLog
from asyncrl.transport.zeromq_socket import (
    Curve,
    ZmqTransportConfig,
    make_actor_socket,
    receive,
    routing_id,
    routing_prefix,
)

_log = logging.getLogger(__name__)
_READABLE = int(zmq.POLLIN)  # as an enum, an operation on it takes a microsecond
# Limit of unread reports. Actors send one per second, and none while they wait for credit.
_SILENCE_WARNING_S = 60.0
"""Seconds after which an actor whose `Hello` got no reply logs the likely reason. It keeps waiting,
since the learner may be stopped; its manager ends actors that cannot connect to a running
learner."""

_MOST_UNREAD = 256


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
        self._poller = zmq.Poller()
        self._warn_at = float("inf")
        self._welcomed = False
        self._refusal: str | None = None
        self._finish = False
        self._hello: Hello | None = None
        self._sent = 0
        self._acknowledged = 0
        self._granted = 0
        self._waits_to_begin = False
        self._unacknowledged: deque[tuple[int, list[zmq.Frame]]] = deque()
        self._reports = 0
        self._unread: deque[tuple[int, list[zmq.Frame]]] = deque()
        self._unsynced = False
        self._asked_at = 0.0
        self._newest: dict[Subject, Delivery | EnvDelivery] = {}
        self._deliveries_known = 0
        """Number of those that have arrived or are known to be lost."""
        self._requested_at: dict[Subject, float] = {}

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        """Introduce this actor; False if the learner has not answered within `timeout_s`."""
        self._handle_arrived()
        if self._hello is None:
            self._hello = message
            self._asked_at = self._clock()
            self._warn_at = self._asked_at + _SILENCE_WARNING_S
            self._put(self._wire.encode(message))
        deadline = self._clock() + timeout_s
        while not self._welcomed:
            if not self._wait(deadline, zmq.POLLIN):
                return False
            self._handle_arrived()
        return True

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        """Wait until message `seq` is granted; False after `timeout_s` or if a model came first."""
        if seq <= self._granted:  # at each step: without reading the socket
            return True
        self._handle_arrived()
        if not self._waits_to_begin and not self._unacknowledged and not self._unread:
            self._asked_at = self._clock()
        deadline = self._clock() + timeout_s
        self._waits_to_begin = True
        while seq > self._granted:
            if not self._wait(deadline, zmq.POLLIN):
                return False
            self._handle_arrived()
            if seq > self._granted and "act" in self._newest:
                return False
        self._waits_to_begin = False
        return True

    def send(self, message: Experience | Report, timeout_s: float) -> bool:
        """Send, or return False if there was no credit within `timeout_s` (reports need none).

        The arrays are copied before it returns. Raises `Refused` if the learner has refused this
        actor.
        """
        if not isinstance(message, Experience):
            message = replace(message, seq=self._reports + 1)
        frames: list[zmq.Frame] = []
        deadline = self._clock() + timeout_s
        while True:
            self._handle_arrived()
            credit = self._has_credit(message)
            if credit:
                # A copy into libzmq's own memory. Zero-copy needs a thread that waits for the
                # arrays' return, and was no faster at any size of experience.
                frames = frames or [zmq.Frame(f, copy=True) for f in self._wire.encode(message)]
                if self._put(frames):
                    break
            if not self._wait(deadline, zmq.POLLIN | (zmq.POLLOUT if credit else 0)):
                return False
        self._unsynced = True
        if not self._unacknowledged and not self._unread:
            self._asked_at = self._clock()
        if isinstance(message, Experience):
            self._sent = message.seq
            self._unacknowledged.append((message.seq, frames))
        else:
            self._reports = message.seq
            self._unread.append((message.seq, frames))
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
            if not self._wait(deadline, zmq.POLLIN):
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
            if not self._unacknowledged and not self._unread:
                return True
            if self._unsynced:
                self._unsynced = not self._sync()
            if not self._wait(deadline, zmq.POLLIN):
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
        if news is not None:
            self._request(subject, max(news.number, newer_than))
            return news if news.number > newer_than else None
        if self._is_due(subject):
            self._request(subject, newer_than)
        return None

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
        if self._refusal is not None:
            raise Refused(self._refusal)
        if self._hello is not None:
            self._ask_again(self._hello)

    def _on(self, message: WireMessage) -> None:
        match message:
            case Ack() | Resend():
                self._on_progress(message)
            case Delivery() | EnvDelivery():
                self._deliveries_known += 1
                held = self._newest.get(message.subject)
                if held is None or message.number > held.number:
                    self._newest[message.subject] = message
            case Welcome():
                self._welcomed = True
                self._connections.close()
            case Finish():
                self._finish = True
            case Refusal(reason):
                self._refusal = reason
            case _:
                raise WireError(f"a learner does not send {type(message).__name__}")

    def _on_progress(self, message: Ack | Resend) -> None:
        """Process an acknowledgement or a request to send again."""
        for kept, seq in ((self._unacknowledged, message.seq), (self._unread, message.reports)):
            if isinstance(message, Resend):
                for frames in [frames for number, frames in kept if number > seq]:
                    self._put(frames)
                continue
            while kept and kept[0][0] <= seq:
                kept.popleft()
                self._asked_at = self._clock()
        if isinstance(message, Ack):
            self._acknowledged = max(self._acknowledged, message.seq)
            self._granted = max(self._granted, message.granted)
            if message.delivered > self._deliveries_known:
                # One was sent before this message and has not arrived: request it again.
                self._deliveries_known = message.delivered
                self._requested_at.clear()

    def _ask_again(self, hello: Hello) -> None:
        """Repeat the `Hello`, or ask what has arrived, after an interval without an answer."""
        waits = self._unacknowledged or self._unread or self._waits_to_begin
        if self._welcomed and not waits:
            return
        now = self._clock()
        if not self._welcomed:
            self._check_silence(now)
        if now - self._asked_at >= self._config.request_interval_s:
            self._asked_at = now
            if self._welcomed:
                self._sync()
            else:
                self._put(self._wire.encode(hello))

    def _sync(self) -> bool:
        """Ask the learner which messages it has received so far."""
        return self._put(self._wire.encode(Sync(self._peer, self._sent, self._reports)))

    def _check_silence(self, now: float) -> None:
        """Raise if the learner rejects the key; else log at intervals the likely reason."""
        self._connections.read()
        if self._connections.counts["denied"]:
            raise Refused(
                f"the learner at {self._endpoint} does not accept the key of {self._peer}, which "
                "was revoked or belongs to another run"
            )
        if now >= self._warn_at:
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
            return len(self._unread) < _MOST_UNREAD
        credit = newest_with_credit(self._granted, self._acknowledged, self._config.window)
        return self._welcomed and message.seq <= credit

    def _is_due(self, subject: Subject) -> bool:
        asked = self._requested_at.get(subject)
        return asked is None or self._clock() - asked >= self._config.request_interval_s

    def _request(self, subject: Subject, have: int) -> None:
        request = Request(self._peer, subject, have, self._deliveries_known)
        self._put(self._wire.encode(request))
        self._requested_at[subject] = self._clock()

    def _put(self, frames: Sequence[Frame | zmq.Frame]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _wait(self, deadline: float, events: int) -> bool:
        """Wait for an event; return False after the deadline."""
        left = deadline - self._clock()
        if left <= 0:
            return False
        self._poller.register(self._socket, events)
        self._poller.poll(ceil(min(left, self._config.request_interval_s) * 1000))
        return True
