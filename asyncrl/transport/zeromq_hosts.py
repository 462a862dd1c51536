"""Messages between a learner and its hosts, over the socket and the port of the actors.

A host connects with the joining key of the run, under a name that it has drawn and that only the
learner learns. That key opens no actor's connection. Does not know what messages say.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from math import ceil

import zmq

from asyncrl.core.errors import Refused, TransportError
from asyncrl.transport.zeromq_auth import Authenticator, ConnectionLog
from asyncrl.transport.zeromq_learner import ZmqLearnerLink
from asyncrl.transport.zeromq_socket import Curve, ZmqTransportConfig, make_actor_socket, receive

_JOINING = "joining"
"""The user of the joining key, which all hosts of a run have."""

MAX_BYTES = 1 << 20
"""Maximum size of one message."""

_NAME_BYTES = 17
_KIND = b"\x02"  # names of actors begin with another byte
_MOST_WAITING_BYTES = 16 << 20


class HostMailbox:
    """Passes messages between the thread of the learner's socket and another one."""

    def __init__(self, auth: Authenticator | None, wake: Callable[[], None]) -> None:
        self._auth = auth
        self._wake = wake
        self._changed = threading.Condition()
        self._arrived: deque[tuple[bytes, bytes]] = deque()
        self._departing: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0
        self.reads = 0
        """How often the learner's socket was read."""
        self.expected = 0
        """Maximum number of hosts that are expected to connect."""

    def open(self, most_hosts: int) -> Curve:
        """Make the joining key, in place of any earlier one."""
        if self._auth is None:
            raise TransportError("hosts can connect over TCP only, where connections need keys")
        self.expected = most_hosts
        curve = Curve.make(self._auth.server)
        self._auth.allow(curve.public, _JOINING)
        return curve

    def objection_to_key(self, key: str) -> str:
        """Return why a public key cannot be that of a host's next actor, or an empty string."""
        return self._auth.objection_to(key) if self._auth else ""

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """Return what has arrived, each with the name of its host; wait at most `timeout_s`."""
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._arrived, timeout_s)
            arrived, self._arrived, self._waiting_bytes = self._arrived, deque(), 0
        return [*arrived]

    def send(self, host: bytes, data: bytes) -> None:
        """Send a message to a host, in the socket's thread."""
        self._departing.append((host, data))
        self._wake()

    def put(self, name: bytes, frames: list[memoryview]) -> bool:
        """Keep a message that has arrived; return False if a host does not send such a one."""
        of_host = name[:1], len(name), len(frames)
        if of_host != (_KIND, _NAME_BYTES, 1) or frames[0].nbytes > MAX_BYTES:
            return False
        with self._changed:
            if self._waiting_bytes < _MOST_WAITING_BYTES:  # else the host repeats it
                self._arrived.append((name, bytes(frames[0])))
                self._waiting_bytes += 256 + frames[0].nbytes  # with what it takes besides
            self._changed.notify_all()
        return True

    def departing(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the messages that the socket's thread must send now."""
        self.reads += 1
        while self._departing:
            yield self._departing.popleft()


class ZmqHostsLink(ZmqLearnerLink):
    """The socket that all actors connect to, and their hosts."""

    @cached_property
    def hosts(self) -> HostMailbox:
        """Messages of hosts; open it before the link is polled."""
        return HostMailbox(self._auth, self.wake)

    def _expected(self) -> int:
        return super()._expected() + self.hosts.expected

    def _serve(self) -> None:
        for host, data in self.hosts.departing():
            self._try_send(host, [data])  # hosts repeat what they need an answer to
        super()._serve()

    def _is_heard(self, name: bytes, user: str, frames: list[memoryview]) -> bool:
        """Whether the owner of a key may send this as an actor; keep the message of a host."""
        if user == _JOINING and self.hosts.put(name, frames):
            return False
        return super()._is_heard(name, user, frames)


class ZmqHostLine:
    """A host's connection to its learner. Must be used by one thread."""

    def __init__(self, endpoint: str, curve: Curve, config: ZmqTransportConfig) -> None:
        self._endpoint = endpoint
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = _KIND + secrets.token_bytes(_NAME_BYTES - 1)
        self._socket = make_actor_socket(self._context, endpoint, name, config, curve)
        self._connections = ConnectionLog(self._socket)
        self._socket.connect(endpoint)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the messages that have arrived; wait for one at most `timeout_s`.

        Raises `Refused` if the learner does not accept the key.
        """
        if self._connections.read()["denied"]:
            raise Refused(
                f"the learner at {self._endpoint} does not accept the join key: the run of this "
                "key has ended, or was started again and has written another key"
            )
        messages = []
        while self._socket.poll(ceil(timeout_s * 1000)):
            frames = receive(self._socket)
            if frames is not None and len(frames) == 1:
                messages.append(frames[0].bytes)
            timeout_s = 0.0
        return messages

    def send(self, data: bytes) -> None:
        """Send a message, or drop it if a thousand others wait for a connection."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return

    def why_silent(self) -> str:
        """Return the likely reason why the learner does not answer; continues a sentence."""
        return self._connections.why_silent()

    def close(self) -> None:
        """Close the connection; messages on their way get a moment. May be called again."""
        if not self._socket.closed and os.getpid() == self._pid:
            self._connections.close()
            self._socket.close(_LINGER_MS)
            self._context.term()


_LINGER_MS = 200
