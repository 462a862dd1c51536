"""Requests of actors to a server of inference on one machine, over Unix sockets.

A round trip is a write and a read on each side. ZeroMQ's threads, which carry experience, add four
changes of thread: between three processes on two cores, they take longer than everything else.

Both ends never wait while they send. What a socket does not take at once is kept, and sent while
its owner receives. A process that is killed leaves nothing but the server's socket file, which the
next server replaces, and whose directory the launcher removes. Does not know what is computed.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl.core.errors import TransportClosed, TransportError, WireError
from asyncrl.core.inference import InferenceAnswer, InferenceRequest
from asyncrl.core.messages import Peer
from asyncrl.transport.inference_wire import InferenceWire
from asyncrl.transport.wire import MAX_HEADER_BYTES, Frame, WireFormat
from asyncrl.transport.zeromq_auth import RejectionLog

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
"""Bytes of one read. For more than twice as many, `malloc` may ask the kernel for new pages at each
read, which then takes ten times as long."""

_BOTH = select.POLLIN | select.POLLOUT
_SIZES = struct.Struct("<2Q")
_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_AGAIN_S = 0.01
"""Pause after the end of a connection, before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixInferenceAddress:
    """The socket file of a server of inference, in a directory of this user's (0700)."""

    path: Path
    wire: WireFormat

    def listen(self) -> UnixInferenceListener:
        """Open the server's end; a socket file that a killed server left is replaced."""
        return UnixInferenceListener(self)

    def connect(self) -> UnixInferenceClient:
        """Open an actor's end; the server need not listen yet."""
        return UnixInferenceClient(self)


class UnixInferenceClient:
    """An actor's connection to the server, which is made again when it breaks.

    Then the newest request is sent again.
    """

    def __init__(self, address: UnixInferenceAddress) -> None:
        self._address = address
        self._wire = InferenceWire(address.wire)
        self._stream: _Stream | None = None
        self._request: tuple[Frame, Frame] | None = None
        self._poll = select.poll()
        self._closed = False

    def send(self, request: InferenceRequest) -> None:
        """Send a request, or keep it until there is a connection."""
        self._check_usable()
        self._request = frames = self._wire.encode(request)
        if self._stream is None:
            self._reconnect()
        elif self._stream.pending:
            _log.debug("request %d is not sent: the server does not read", request.number)
        else:
            self._put(self._stream, frames)

    def receive(self, timeout_s: float) -> InferenceAnswer | None:
        """Return the next answer, or None if there was none within `timeout_s`."""
        self._check_usable()
        if self._stream is None and not self._reconnect():
            time.sleep(timeout_s)  # nothing listens
            return None
        stream = self._stream
        if stream is None:
            return None
        if not stream.received:
            try:
                self._wait(stream, timeout_s)
            except (OSError, WireError):
                self._drop()
                time.sleep(min(timeout_s, _AGAIN_S))
                return None
        if not stream.received:
            return None
        message = self._wire.decode(stream.received.pop(0))
        if not isinstance(message, InferenceAnswer):
            raise WireError(f"a server of inference does not send {type(message).__name__}")
        return message

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._closed = True
        self._drop()

    def _wait(self, stream: _Stream, timeout_s: float) -> None:
        if stream.pending:
            self._poll.modify(stream.socket, _BOTH)
        for _, events in self._poll.poll(1000 * timeout_s):
            if events & select.POLLOUT:
                stream.flush(self._poll)
            if events & ~select.POLLOUT:
                stream.read()

    def _reconnect(self) -> bool:
        """Connect, and send the newest request; return whether that was possible."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(os.fspath(self._address.path))
        except OSError:  # it has not started yet, is being restarted, or is overloaded
            connection.close()
            return False
        self._stream = _Stream(connection, self._wire.max_body_bytes)
        self._poll.register(connection, select.POLLIN)
        if self._request:
            self._put(self._stream, self._request)
        return True

    def _put(self, stream: _Stream, frames: tuple[Frame, Frame]) -> None:
        try:
            stream.send(frames)
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._stream is not None:
            self._poll.unregister(self._stream.socket)
            self._stream.socket.close()
            self._stream = None

    def _check_usable(self) -> None:
        if self._closed:
            raise TransportClosed("this connection to the server of inference is closed")


class UnixInferenceListener:
    """The server's socket, and a connection for each actor. Must be used by one thread."""

    def __init__(self, address: UnixInferenceAddress) -> None:
        self._wire, self._path = InferenceWire(address.wire), address.path
        self._open: dict[int, _Stream] = {}
        """Connections by descriptor."""
        self._streams: dict[Peer, _Stream] = {}
        self._poll = select.poll()
        self._listening = socket.socket(socket.AF_UNIX)
        self._rejections = RejectionLog(Counter(), time.monotonic)
        self._pid = os.getpid()
        self._path.unlink(missing_ok=True)
        try:
            self._listening.bind(os.fspath(self._path))
            self._path.chmod(0o600)
            self._listening.listen(_BACKLOG)
        except OSError as error:
            self._listening.close()
            raise TransportError(f"cannot listen on {self._path}: {error}") from error
        self._listening.setblocking(False)
        self._poll.register(self._listening, select.POLLIN)

    def receive(self, timeout_s: float) -> list[InferenceRequest]:
        """Return the requests that have arrived; wait for one at most `timeout_s`."""
        if self._listening.fileno() < 0:
            raise TransportClosed("this server of inference is closed")
        requests: list[InferenceRequest] = []
        for descriptor, events in self._poll.poll(1000 * timeout_s):
            stream = self._open.get(descriptor)
            if stream is None:
                self._accept()
                continue
            try:
                if events & select.POLLOUT:
                    stream.flush(self._poll)
                if events & ~select.POLLOUT:
                    stream.read()
                    requests += self._decode(stream)
            except WireError as error:
                self._rejections.note("malformed", str(error))
                self._drop(stream)
            except OSError:  # the actor has exited
                self._drop(stream)
        return requests

    def answer(self, peer: Peer, answer: InferenceAnswer) -> None:
        """Send an answer, or drop it if the actor is gone or does not read."""
        stream = self._streams.get(peer)
        if stream is None or stream.pending:
            return
        try:
            stream.send(self._wire.encode(answer))
        except OSError:
            self._drop(stream)
            return
        if stream.pending:
            self._poll.modify(stream.socket, _BOTH)

    def close(self) -> None:
        """Close all connections; may be called again."""
        if self._listening.fileno() < 0 or os.getpid() != self._pid:
            return
        for stream in self._open.values():
            stream.socket.close()
        self._listening.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with suppress(OSError):  # it has left again, or there is no descriptor for it
            connection, _ = self._listening.accept()
            if not _is_own(connection):
                connection.close()
                return
            connection.setblocking(False)
            self._open[connection.fileno()] = _Stream(connection, self._wire.max_body_bytes)
            self._poll.register(connection, select.POLLIN)

    def _decode(self, stream: _Stream) -> list[InferenceRequest]:
        requests = []
        for frames in stream.received:
            request = self._wire.decode(frames)
            if not isinstance(request, InferenceRequest):
                raise WireError(f"an actor does not send {type(request).__name__} to a server")
            if stream.peer is None:
                stream.peer = request.peer
            elif stream.peer != request.peer:
                raise WireError(f"{stream.peer} calls itself {request.peer}")
            self._streams[request.peer] = stream
            requests.append(request)
        stream.received.clear()
        return requests

    def _drop(self, stream: _Stream) -> None:
        self._poll.unregister(stream.socket)
        del self._open[stream.socket.fileno()]
        stream.socket.close()
        if stream.peer is not None and self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]


class _Stream:
    """Messages over one connection: the sizes of two frames, and the frames."""

    def __init__(self, connection: socket.socket, max_body_bytes: int) -> None:
        self.socket = connection
        self.peer: Peer | None = None
        self.pending = b""
        """Bytes that the socket has not taken yet."""
        self.received: list[tuple[memoryview, memoryview]] = []
        """Frames of whole messages."""
        self._max_body_bytes = max_body_bytes
        self._read = bytearray()

    def send(self, frames: tuple[Frame, Frame]) -> None:
        """Send a message, or the part of it that the socket takes; raise `OSError` at its end."""
        parts = [_SIZES.pack(*map(len, frames)), *frames]
        try:
            sent = self.socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        if sent < sum(map(len, parts)):
            self.pending = b"".join(parts)[sent:]

    def flush(self, poll: select.poll) -> None:
        """Send more of what is pending; after the last of it, poll only for what arrives."""
        with suppress(BlockingIOError):
            self.pending = self.pending[self.socket.send(self.pending) :]
        if not self.pending:
            poll.modify(self.socket, select.POLLIN)

    def read(self) -> None:
        """Read what is there; raise `OSError` at the end of the connection."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        self._read += data
        while len(self._read) >= _SIZES.size and self._take():
            pass

    def _take(self) -> bool:
        """Take one message out of what was read, if it is complete."""
        read = self._read
        header_bytes, body_bytes = _SIZES.unpack_from(read)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > self._max_body_bytes:
            raise WireError(f"a message of {header_bytes} and {body_bytes} bytes")
        begin = _SIZES.size + header_bytes
        end = begin + body_bytes
        if len(read) < end:
            return False
        message = memoryview(bytes(memoryview(read)[:end]))
        del read[:end]
        self.received.append((message[_SIZES.size : begin], message[begin:end]))
        return True


def _is_own(connection: socket.socket) -> bool:
    """Whether a process of the same user, or of root, is at the other end."""
    if sys.platform != "linux":
        return True  # the mode of the socket or of its directory keeps others out
    size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return _CREDENTIALS.unpack(credentials)[1] in {0, os.getuid()}
