"""The learner's end of the ZeroMQ transport. `protocol.PeerTable` decides which messages count.

One thread receives and owns the socket. Other threads leave their requests in a few fields under a
lock, and wake it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import zmq

from asyncrl.core.errors import TransportClosed, TransportError, WireError
from asyncrl.core.messages import (
    ActorReport,
    EnvChange,
    Experience,
    Hello,
    Message,
    ModelInfo,
    Peer,
)
from asyncrl.core.transport import Topic, Transport
from asyncrl.transport.protocol import (
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    PeerTable,
    Refusal,
    Request,
    Subject,
)
from asyncrl.transport.wire import ForeignProtocol, ForeignRun, Frame, WireFormat
from asyncrl.transport.zeromq_auth import Authenticator, ConnectionLog, RejectionLog
from asyncrl.transport.zeromq_socket import (
    Curve,
    ZmqTransportConfig,
    ipc_path,
    listen,
    make_learner_socket,
    poller_of,
    receive,
    release,
    routing_id,
    routing_prefix,
    sender,
)

_log = logging.getLogger(__name__)
# So that a flood does not delay acknowledgements and models.
_MOST_AT_ONCE = 64


class ZmqLearnerLink:
    """The socket that all actors connect to."""

    newest_change = EnvChange()

    def __init__(
        self,
        endpoint: str,
        wire: WireFormat,
        config: ZmqTransportConfig,
        make_address: Callable[[str, Curve | None], Transport],
        clock: Callable[[], float] = time.monotonic,
        *,
        curve: Curve | None = None,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._pid = os.getpid()
        self._table = PeerTable(wire.schema.hash(), config.window)
        self._rejections = RejectionLog(self._table.counters, clock)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            # In this order, closed in reverse: the socket is never open without authentication.
            self._auth = Authenticator(self._context, curve.server) if curve else None
            self._socket = make_learner_socket(self._context, endpoint, config, curve)
            self._connections = ConnectionLog(self._socket)
            self._endpoint = listen(self._socket, endpoint)
        except Exception:
            self._context.destroy(0)
            raise
        # Garbage collection of an unclosed link must not block on its sockets, of which the
        # context has forgotten those that are garbage.
        held = [each.socket for each in (self._connections, self._auth) if each] + [self._socket]
        self._release = weakref.finalize(self, release, held, self._context)
        self._release.atexit = False
        self._make_address = partial(make_address, self._endpoint)
        self.address = self._make_address(curve and replace(curve, secret=b""))
        """The learner's address; `admit` adds a key."""
        self._prefix = routing_prefix(wire.run_id)
        self._requests: dict[tuple[Peer, Subject], int] = {}
        # A socket pair: every platform can poll it, and any thread may write to it.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._poller = poller_of(*held, self._wake_receiver)
        self._lock = threading.Lock()
        self._closed = self._woken = self._finish = self._finish_sent = False
        self._newest: dict[Subject, tuple[int, list[Frame | zmq.Frame]]] = {}
        self._has_news = False
        self._leaving: set[bytes] = set()  # or have exited: they need no answers
        self._fenced, self._admitted, self._names = set[bytes](), set[Peer](), dict[Peer, bytes]()
        self.traffic_bytes = Counter[Peer]()
        """Content of experience and models exchanged with each admitted incarnation."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages and connections that were not accepted, by reason. Any thread."""
        return dict(self._table.counters)

    def admit(self, peer: Peer, key: str = "", *, evaluates: bool = False) -> Transport:
        """Return what this incarnation connects to, including its key. Any thread.

        `key` is a public key that was made where it runs; then the address returned has none.
        """
        if evaluates:
            self._table.evaluators.add(peer.actor_id)
        self._admitted.add(peer)
        if self._auth is None:
            return self._make_address(None)
        self._auth.revoke(self._name(peer).hex())
        made = None if key else Curve.make(self._auth.server)
        public = made.public if made else key.encode()
        self._names[peer] = name = routing_id(self._prefix, peer, public)
        self._auth.allow(public, name.hex())
        return self._make_address(made) if made else self.address

    def revoke(self, peer: Peer, *, fence: bool = False) -> None:
        """Note that this incarnation has ended: its key opens no further connection. Any thread.

        With `fence` it may still run, out of reach; its open connection is no longer heard.
        """
        name = self._name(peer)
        self._leaving.add(name)
        self._admitted.discard(peer)
        self.traffic_bytes.pop(peer, None)
        if fence:
            self._fenced.add(name)
        if self._auth:
            self._auth.revoke(name.hex())

    def poll(self, timeout_s: float, waited: Callable[[], object] = lambda: None) -> list[Message]:
        """Return what has arrived, or an empty list after `timeout_s`, a `wake` or a `publish`.

        Malformed and unwanted messages are counted and logged, and never raise.
        """
        self._check_usable()
        deadline = self._clock() + timeout_s
        woken = False
        while True:
            self._serve()
            self._check_connections()
            messages = self._receive()
            left = deadline - self._clock()
            if messages or woken or left <= 0:
                return messages
            woken = self._wait(left)
            waited()

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        """Return the credit of messages up to `seq`, and grant those up to `granted`."""
        self._check_usable()
        if self._table.acknowledges(peer, seq, granted):
            self._send(peer, self._table.ack(peer))

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Make this the newest model of a topic if it is newer than the current one. Any thread.

        The parameters are copied before it returns. Raises `WireError` if they cannot be sent.
        """
        self._offer(Delivery(topic, model))

    def change_env(self, change: EnvChange) -> None:
        """Make this the newest change of environments; it replaces any older one. Any thread.

        Raises `WireError` if the keyword arguments are too large.
        """
        self.newest_change = change
        self._offer(EnvDelivery(change.number, json.dumps(dict(change.kwargs))))

    def wake(self) -> None:
        """Make a waiting `poll` return. Any thread."""
        with self._lock:
            if not self._woken and not self._closed:
                self._woken = True
                self._wake_sender.send(b"\0")

    def stop_actors(self) -> None:
        """Ask every actor to finish, including those that connect later. Any thread."""
        with self._lock:
            self._finish = self._has_news = True
        self.wake()

    def close(self) -> None:
        """Close the link; may be called again."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self._wake_receiver.close()
            self._wake_sender.close()
        self._connections.close()
        self._socket.close()
        if self._auth:
            self._auth.close()
        self._context.term()
        self._release.detach()
        path = ipc_path(self._endpoint)
        if path is not None:
            path.unlink(missing_ok=True)

    def _offer(self, news: Delivery | EnvDelivery) -> None:
        """Make this the newest of its subject if it is newer than the current one."""
        header, *blocks = self._wire.encode(news)
        # In libzmq's own reference-counted memory, so it is sent to every actor without another
        # copy.
        frames = [header, *(zmq.Frame(block, copy=True) for block in blocks)]
        with self._lock:
            if news.subject in self._newest and self._newest[news.subject][0] >= news.number:
                return
            self._newest[news.subject] = (news.number, frames)
            self._has_news = True
        self.wake()

    def _check_usable(self) -> None:
        if self._closed:
            raise TransportClosed(f"the link on {self._endpoint} is closed")
        if os.getpid() != self._pid:
            raise TransportError(f"a link made in process {self._pid} is used in another process")

    def _wait(self, timeout_s: float) -> bool:
        """Wait until there is something to do; return whether `wake` was called."""
        self._poller.poll(ceil(timeout_s * 1000))
        with self._lock:
            woken, self._woken = self._woken, False
            if woken:
                self._wake_receiver.recv(1)
        return woken

    def _check_connections(self) -> None:
        """Answer waiting connections; count those that failed or are too many."""
        if self._auth:
            self._auth.answer()
        for rejection in self._connections.rejections(self._expected()):
            self._rejections.note(*rejection)

    def _expected(self) -> int:
        """Return how many connections are no flood."""
        return max(len(self._table.peers), len(self._admitted))

    def _serve(self) -> None:
        """Send what other threads have requested since the last call."""
        with self._lock:
            if not self._has_news:
                return
            self._has_news = False
            sends_finish = self._finish and not self._finish_sent
            self._finish_sent = self._finish
        for (peer, subject), have in list(self._requests.items()):
            self._answer(peer, subject, have)
        for peer in self._table.peers if sends_finish else ():
            self._send(peer, Finish())

    def _receive(self) -> list[Message]:
        messages: list[Message] = []
        for _ in range(_MOST_AT_ONCE):
            frames = receive(self._socket)
            if frames is None:
                break
            message = self._read(frames[0], [frame.buffer for frame in frames[1:]])
            if message is not None and (wanted := self._handle(message)) is not None:
                messages.append(wanted)
        return messages

    def _read(self, first: zmq.Frame, frames: list[memoryview]) -> _FromActor | None:
        """Decode a message; return None if it is not of an actor that may send it."""
        name = first.bytes
        if self._auth and not self._is_heard(name, sender(first), frames):
            return None
        try:
            message = self._wire.decode(frames)
        except ForeignRun as error:
            self._rejections.note("foreign_run", str(error))
        except ForeignProtocol as error:
            self._rejections.note("foreign_protocol", str(error))
            # The peer does not understand this answer, but its own error then says so.
            self._send_frames(name, self._wire.encode(Refusal(str(error))))
        except WireError as error:
            self._on_malformed(name, str(error))
        else:
            if isinstance(message, _FromActor) and name == self._name(message.peer):
                self._count(message.peer, frames)
                return message
            self._on_malformed(name, f"{type(message).__name__} from a peer that may not send it")
        return None

    def _is_heard(self, name: bytes, user: str, frames: list[memoryview]) -> bool:
        """Whether the owner of a key may send this."""
        if user == name.hex() and name not in self._fenced:
            return True
        if user == name.hex():
            self._table.counters["fenced"] += 1
            self._send_frames(name, self._wire.encode(Refusal(_FENCED)))
            return False
        words = f"a message from {user} under the name of {name.hex()}"
        self._rejections.note("impostor", words)
        return False

    def _on_malformed(self, name: bytes, error: str) -> None:
        self._rejections.note("malformed", error)
        for peer in self._table.peers:
            if self._name(peer) == name:
                self._table.refuse(peer, f"the learner could not read a message: {error}")
        self._carry_out_refusals()

    def _handle(self, message: _FromActor) -> Message | None:
        """Handle what a message asks of the link itself; return it if it is for the caller."""
        if isinstance(message, Request):
            if self._table.hears(message.peer):
                self._requests[message.peer, message.subject] = message.have
                self._answer(message.peer, message.subject, message.have)
            return None
        admitted = self._table.admits(message)
        self._carry_out_refusals()
        if admitted and not isinstance(message, Experience):
            self._send(message.peer, self._table.ack(message.peer))
        if admitted and isinstance(message, Hello) and self._finish_sent:
            self._send(message.peer, Finish())
        elif admitted and isinstance(message, ActorReport) and message.final:
            self._forget_requests(message.peer)
            self._leaving.add(self._name(message.peer))
        return message if admitted else None

    def _answer(self, peer: Peer, subject: Subject, have: int) -> None:
        """Send the newest of a subject if it is newer; otherwise keep the request until one is."""
        with self._lock:
            number, frames = self._newest.get(subject, (have, []))
        if number > have:
            del self._requests[peer, subject]
            self._send_frames(self._name(peer), frames)
            self._count(peer, frames)

    def _carry_out_refusals(self) -> None:
        while self._table.refusals:
            peer, reason = self._table.refusals.popleft()
            _log.info("refusing %s: %s", peer, reason)
            self._send(peer, Refusal(reason))
            self._forget_requests(peer)

    def _forget_requests(self, peer: Peer) -> None:
        for key in [key for key in self._requests if key[0] == peer]:
            del self._requests[key]

    def _send(self, peer: Peer, message: _ToActor) -> None:
        self._send_frames(self._name(peer), self._wire.encode(message))

    def _send_frames(self, name: bytes, frames: Sequence[Frame | zmq.Frame]) -> None:
        if not self._try_send(name, frames) and name not in self._leaving:
            self._table.counters["undelivered"] += 1

    def _try_send(self, name: bytes, frames: Sequence[Frame | zmq.Frame]) -> bool:
        try:
            self._socket.send_multipart([name, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # It has exited or lost its connection, or has not read a thousand messages.
            if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                raise
            return False
        return True

    def _count(self, peer: Peer, frames: Sequence[Frame | zmq.Frame]) -> None:
        if peer in self._admitted:
            self.traffic_bytes[peer] += sum(map(len, frames))

    def _name(self, peer: Peer) -> bytes:
        return self._names.get(peer) or routing_id(self._prefix, peer)


_FENCED = "the learner had lost this actor with its host, and no longer hears it"

_FromActor = Message | Request
_ToActor = Ack | Finish | Refusal
