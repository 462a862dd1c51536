"""The learner's end of the ZeroMQ transport. Who may speak is decided by `protocol.PeerTable`.

One thread receives, and owns the socket. Other threads leave what they want in a few fields
under a lock, and wake it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import ceil

import zmq

from asyncrl.errors import TransportClosed, TransportError, WireError
from asyncrl.messages import (
    ActorReport,
    EvaluationReport,
    Experience,
    Hello,
    Message,
    ModelInfo,
    Peer,
)
from asyncrl.protocol import (
    Ack,
    Delivery,
    Finish,
    ModelRequest,
    PeerTable,
    Refusal,
    Sync,
    Welcome,
)
from asyncrl.transport import Topic, Transport
from asyncrl.transports._zeromq_socket import (
    ZmqTransportConfig,
    bind_learner,
    ipc_path,
    receive,
    routing_id,
    routing_prefix,
)
from asyncrl.wire import ForeignRun, Frame, WireFormat

__all__ = ["ZmqLearnerLink"]

_log = logging.getLogger(__name__)
_LOG_INTERVAL_S = 10.0
# So that acknowledgements and models are not kept waiting by a flood.
_MOST_AT_ONCE = 64


class ZmqLearnerLink:
    """The socket all actors are connected to."""

    def __init__(
        self,
        endpoint: str,
        wire: WireFormat,
        config: ZmqTransportConfig,
        make_address: Callable[[str], Transport],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._pid = os.getpid()
        self._table = PeerTable(wire.schema.hash(), config.window)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = bind_learner(self._context, endpoint, config)
        except Exception:
            self._context.term()
            raise
        # A link that nobody closes must not wait in the garbage collection for its own sockets.
        self._release = weakref.finalize(self, _release, self._socket, self._context)
        self._release.atexit = False
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = make_address(self._endpoint)
        """What actors connect to; can be sent to another process."""
        self._prefix = routing_prefix(wire.run_id)
        self._requests: dict[tuple[Peer, Topic], int] = {}
        self._log_after = 0.0
        # A socket pair, because it is the one thing that a poller takes on every platform and
        # that any thread may write to.
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)
        self._lock = threading.Lock()
        self._closed = False
        self._rung = False
        self._models: dict[Topic, tuple[int, list[Frame | zmq.Frame]]] = {}
        self._news = False
        self._finish = False
        self._told_to_finish: set[Peer] = set()

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages that did not count, by reason, and `missing` ones. Any thread."""
        return dict(self._table.counters)

    def poll(self, timeout_s: float) -> list[Message]:
        """Return what has arrived, or nothing after `timeout_s`, a `wake` or a `publish`.

        Malformed and unwanted messages are counted and logged, and never raise.
        """
        self._check_usable()
        self._serve()
        messages = self._receive()
        if not messages and timeout_s > 0:
            self._wait(timeout_s)
            self._serve()
            messages = self._receive()
        return messages

    def acknowledge(self, peer: Peer, seq: int) -> None:
        """Give back the credit of all this peer's messages up to `seq`."""
        self._check_usable()
        if self._table.acknowledges(peer, seq):
            self._send(peer, Ack(seq))

    def refuse(self, peer: Peer, reason: str) -> None:
        """Turn a peer away."""
        self._check_usable()
        self._table.refuse(peer, reason)
        self._carry_out_refusals()

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Make this the newest model of a topic, unless one as new is there. Any thread.

        The parameters have been copied when it returns. Raises `WireError` if they cannot be
        sent.
        """
        header, block = self._wire.encode(Delivery(topic, model))
        # libzmq's own memory, counted by libzmq: sent to every actor without another copy.
        frames: list[Frame | zmq.Frame] = [header, zmq.Frame(block, copy=True)]
        with self._lock:
            if topic in self._models and self._models[topic][0] >= model.version:
                return
            self._models[topic] = (model.version, frames)
            self._news = True
        self.wake()

    def wake(self) -> None:
        """Make a `poll` that is waiting return. Any thread."""
        with self._lock:
            if not self._rung and not self._closed:
                self._rung = True
                self._button.send(b"\0")

    def stop_actors(self) -> None:
        """Ask every actor, also those that connect later, to finish. Any thread."""
        with self._lock:
            self._finish = self._news = True
        self.wake()

    def close(self) -> None:
        """Let go of the link; may be called again."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self._bell.close()
            self._button.close()
        self._socket.close()
        self._context.term()
        self._release.detach()
        path = ipc_path(self._endpoint)
        if path is not None:
            path.unlink(missing_ok=True)

    def _check_usable(self) -> None:
        if self._closed:
            raise TransportClosed(f"the link on {self._endpoint} is closed")
        if os.getpid() != self._pid:
            raise TransportError(f"a link made in process {self._pid} is used in another")

    def _wait(self, timeout_s: float) -> None:
        self._poller.poll(ceil(timeout_s * 1000))
        with self._lock:
            if self._rung:
                self._rung = False
                self._bell.recv(1)

    def _serve(self) -> None:
        """Send what other threads have asked for since the last time."""
        with self._lock:
            if not self._news:
                return
            self._news = False
        for (peer, topic), have in list(self._requests.items()):
            self._answer(peer, topic, have)
        for peer in self._table.peers:
            self._finish_if_asked(peer)

    def _receive(self) -> list[Message]:
        messages: list[Message] = []
        for _ in range(_MOST_AT_ONCE):
            frames = receive(self._socket)
            if frames is None:
                break
            message = self._read(bytes(frames[0]), frames[1:])
            if message is not None and (wanted := self._handle(message)) is not None:
                messages.append(wanted)
        return messages

    def _read(self, name: bytes, frames: list[memoryview]) -> _FromActor | None:
        """Decode a message; None if it is not one that its sender may send."""
        try:
            message = self._wire.decode(frames)
        except ForeignRun as error:
            self._note("foreign_run", str(error))
        except WireError as error:
            self._on_malformed(name, str(error))
        else:
            if isinstance(message, _FromActor) and name == self._name(message.peer):
                return message
            self._on_malformed(name, f"{type(message).__name__} from one who may not say it")
        return None

    def _on_malformed(self, name: bytes, error: str) -> None:
        self._note("malformed", error)
        for peer in self._table.peers:
            if self._name(peer) == name:
                self.refuse(peer, f"the learner could not read a message: {error}")

    def _handle(self, message: _FromActor) -> Message | None:
        """Do what a message asks of the link itself; return it if it is for the caller."""
        if isinstance(message, ModelRequest | Sync):
            if self._table.hears(message.peer):
                self._respond(message)
            return None
        admitted = self._table.admits(message)
        self._carry_out_refusals()
        if admitted and isinstance(message, Hello):
            self._send(message.peer, Welcome())
            self._finish_if_asked(message.peer)
        return message if admitted else None

    def _respond(self, message: ModelRequest | Sync) -> None:
        if isinstance(message, Sync):
            self._send(message.peer, message)
        else:
            self._requests[message.peer, message.topic] = message.have
            self._answer(message.peer, message.topic, message.have)

    def _answer(self, peer: Peer, topic: Topic, have: int) -> None:
        """Send the newest model if it is newer; else the request stands until one is."""
        with self._lock:
            version, frames = self._models.get(topic, (have, []))
        if version > have:
            del self._requests[peer, topic]
            self._send_frames(peer, frames)

    def _finish_if_asked(self, peer: Peer) -> None:
        if self._finish and peer not in self._told_to_finish:
            self._told_to_finish.add(peer)
            self._send(peer, Finish())

    def _carry_out_refusals(self) -> None:
        refusals = self._table.refusals
        while refusals:
            peer, reason = refusals.popleft()
            _log.info("turning %s away: %s", peer, reason)
            self._send(peer, Refusal(reason))
            for key in [key for key in self._requests if key[0] == peer]:
                del self._requests[key]

    def _send(self, peer: Peer, message: Ack | Finish | Refusal | Sync | Welcome) -> None:
        self._send_frames(peer, self._wire.encode(message))

    def _send_frames(self, peer: Peer, frames: Sequence[Frame | zmq.Frame]) -> None:
        try:
            self._socket.send_multipart([self._name(peer), *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Gone, or deaf for a thousand messages; an actor that comes back asks again.
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
            self._table.counters["undelivered"] += 1

    def _name(self, peer: Peer) -> bytes:
        return routing_id(self._prefix, peer)

    def _note(self, reason: str, error: str) -> None:
        self._table.counters[reason] += 1
        if (now := self._clock()) >= self._log_after:
            self._log_after = now + _LOG_INTERVAL_S
            count = self._table.counters[reason]
            _log.warning("dropped a message, %s number %d: %s", reason, count, error)


_FromActor = Hello | Experience | ActorReport | EvaluationReport | ModelRequest | Sync


def _release(socket: zmq.Socket[bytes], context: zmq.Context[zmq.Socket[bytes]]) -> None:
    socket.close(0)
    context.term()
