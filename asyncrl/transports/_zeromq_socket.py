"""Sockets as this package wants them. The only place where a socket option is set."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from struct import pack

import zmq

from asyncrl.errors import ConfigError, TransportError
from asyncrl.messages import Peer

__all__ = [
    "MAX_FRAMES",
    "ZmqTransportConfig",
    "bind_learner",
    "connect_actor",
    "ipc_path",
    "receive",
    "routing_id",
    "routing_prefix",
]

MAX_FRAMES = 256
"""Frames of one message; what lies beyond is thrown away unread, with the message."""

_HANDSHAKE_MS = 3000
_HIGH_WATER_MARK = 1000
_LEARNER_LINGER_MS = 200
# sun_path has 104 bytes on the BSDs and macOS, 108 on Linux, with the closing zero.
_MAX_IPC_PATH = 103


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqTransportConfig:
    """Limits and patience of a `ZmqTransport`."""

    window: int = 8
    """Messages of experience that an actor may have unacknowledged: the most a kill can lose."""

    silence_timeout_s: float = 60.0
    """An actor whose `Hello` is not answered for this long gives up."""

    request_interval_s: float = 5.0
    """A request for a model is repeated after this time, in case it was lost."""

    max_message_bytes: int = 64 << 20
    """Bytes of experience in one message; a peer that sends more is cut off."""

    max_model_bytes: int = 1 << 30
    """Bytes of one model."""

    def __post_init__(self) -> None:
        for name in ("window", "max_message_bytes", "max_model_bytes"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for name in ("silence_timeout_s", "request_interval_s"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"{name} must be above 0 s, got {value}")
        if self.window > _HIGH_WATER_MARK // 2:
            raise ConfigError(f"window must be at most {_HIGH_WATER_MARK // 2}, got {self.window}")


def routing_prefix(run_id: str) -> bytes:
    """Return what all names of a run begin with.

    An actor left over from another run thus cannot take the name of one of ours. A first byte of
    zero would be libzmq's own.
    """
    return b"\x01" + sha256(run_id.encode()).digest()[:8]


def routing_id(prefix: bytes, peer: Peer) -> bytes:
    """Return the name under which the learner's socket knows a peer."""
    return prefix + pack(">qq", peer.actor_id, peer.incarnation)


def bind_learner(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, config: ZmqTransportConfig
) -> zmq.Socket[bytes]:
    """Open the learner's socket; what it is bound to is its `LAST_ENDPOINT`."""
    path = ipc_path(endpoint)
    if path is not None:
        _check_private(path)
    socket = _make_socket(context, zmq.ROUTER, config.max_message_bytes)
    socket.setsockopt(zmq.LINGER, _LEARNER_LINGER_MS)
    # Say so when a peer is gone, instead of dropping in silence; and let one that comes back
    # have its name again before the loss of its old connection has been noticed.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    if path is not None and sys.platform == "linux":
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    try:
        socket.bind(endpoint)
        if path is not None:
            path.chmod(0o600)
    except (zmq.ZMQError, OSError) as error:
        socket.close(0)
        raise TransportError(f"cannot listen on {endpoint}: {error}") from error
    return socket


def connect_actor(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, name: bytes, config: ZmqTransportConfig
) -> zmq.Socket[bytes]:
    """Open an actor's socket."""
    socket = _make_socket(context, zmq.DEALER, config.max_model_bytes)
    socket.setsockopt(zmq.ROUTING_ID, name)
    socket.connect(endpoint)
    return socket


def receive(socket: zmq.Socket[bytes]) -> list[memoryview] | None:
    """Return the frames of the next message, without a copy, or None if there is none."""
    try:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame.buffer]
    while frame.more:
        frame = socket.recv(copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(frame.buffer)
    return frames


def ipc_path(endpoint: str) -> Path | None:
    """Return the file behind an ipc endpoint."""
    return Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None


def _make_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, max_frame_bytes: int
) -> zmq.Socket[bytes]:
    """Open a socket with what both sides need; libzmq heeds most of it only before bind."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    # Credit bounds memory; this only stops a peer that ignores it.
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
    # Every call here is non-blocking; should one ever not be, it fails instead of waiting.
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.RCVTIMEO, 0)
    return socket


def _check_private(path: Path) -> None:
    """Refuse a path that others may reach, or that somebody listens on: bind would steal it."""
    if len(os.fsencode(path)) > _MAX_IPC_PATH:
        raise ConfigError(f"ipc path longer than {_MAX_IPC_PATH} bytes: {path}")
    try:
        directory = path.parent.stat()
    except OSError as error:
        raise ConfigError(f"the directory for {path} cannot be used: {error}") from error
    if directory.st_uid != os.getuid() or stat.S_IMODE(directory.st_mode) & 0o077:
        raise ConfigError(f"{path.parent} must be this user's own and closed to others (0700)")
    if path.exists():
        raise TransportError(f"{path} exists: another learner listens there, or died there")
