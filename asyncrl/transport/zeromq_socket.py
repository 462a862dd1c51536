"""Creates configured sockets: the only place for socket options. Does not know messages."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from struct import pack
from typing import Self, cast

import zmq

from asyncrl.core.declared import Count, Positive, check_declared
from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.core.messages import Peer

ZAP_DOMAIN = b"asyncrl"
"""Name under which the learner's socket is known to its gatekeeper."""

MAX_FRAMES = 256
"""Maximum number of frames per message. libzmq receives a longer one completely; it is then
dropped."""

_HANDSHAKE_MS, _CONNECT_MS, _LEARNER_LINGER_MS = 3000, 2000, 200
_HIGH_WATER_MARK = 1000
# sun_path has 104 bytes on the BSDs and macOS, 108 on Linux, including the final zero.
_MAX_IPC_PATH = 103
_ENCRYPTION_BYTES = 64
"""Encryption makes a frame 33 bytes larger, as its limit counts it."""

# Limit of unread events. Beyond it libzmq blocks, which is better than unbounded memory.
_MAX_EVENTS = 20_000
_SPARE_DESCRIPTORS = 16
# As plain integers, which are faster than enum members.
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_OLDEST_LIBZMQ = (4, 3, 5)


def check_libzmq(version: tuple[int, ...]) -> None:
    """Refuse a version of libzmq with known security holes."""
    if version < _OLDEST_LIBZMQ:
        raise ImportError(
            f"libzmq {'.'.join(map(str, version))} is too old: asyncrl needs "
            f"{'.'.join(map(str, _OLDEST_LIBZMQ))} or newer, because older ones have security "
            "holes. Install a newer pyzmq, whose wheels contain it"
        )


check_libzmq(zmq.zmq_version_info())


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqTransportConfig:
    """Address, limits and timeouts of a `ZmqTransport`."""

    bind: str = "ipc"
    """`ipc` uses a socket file that only this user can access. `tcp://ADDRESS` or
    `tcp://ADDRESS:PORT` listens on that address of this host; everything is then encrypted, and
    only processes of this run can connect."""

    advertise: str = ""
    """Host name or address under which other machines reach this one, if it is not that of `bind`,
    as behind address translation: `NAME` or `NAME:PORT`. Empty: the address of `bind`."""

    bind_every_interface: bool = False
    """Allow `0.0.0.0` or `::` in `bind`, which listen on every network of this host."""

    heartbeat_interval_s: Positive = 2.0
    """Seconds between heartbeats over TCP. A connection is closed after three intervals of
    silence, and its actor is started again."""

    window: Count = 8
    """Maximum number of unacknowledged messages of experience per actor. A killed actor loses at
    most these. If more are needed to keep an actor far away busy, the learner allows up to 64, or
    up to the square of a window below 8; with 1 it never does."""

    max_message_bytes: Count = 64 << 20
    """Maximum size of one message of experience in bytes. A peer that sends more is
    disconnected."""

    max_model_bytes: Count = 1 << 30
    """Maximum size of one model in bytes."""

    def __post_init__(self) -> None:
        check_declared(self, "transport")
        if self.window > _HIGH_WATER_MARK // 2:
            raise ConfigError(
                f"transport.window must be at most {_HIGH_WATER_MARK // 2}, got {self.window}"
            )
        if self.bind != "ipc":
            tcp_endpoint(self.bind, every_interface=self.bind_every_interface)
        elif self.bind_every_interface:
            raise ConfigError("bind_every_interface needs bind to be tcp://0.0.0.0 or tcp://[::]")
        if self.advertise:
            advertised(self.advertise, "tcp://127.0.0.1:1")
            if self.bind == "ipc":
                raise ConfigError(
                    f"transport.advertise is {self.advertise!r}, but bind is 'ipc', which no other "
                    "machine can reach; set transport.bind to tcp://ADDRESS, on the command line "
                    "--listen tcp://ADDRESS"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The keys of one end of an encrypted connection; made for one run, and never stored."""

    server: bytes
    """The learner's public key."""

    public: bytes
    """This end's own public key; for the learner it equals `server`."""

    secret: bytes = field(repr=False)
    """Empty in an address that is not assigned to an actor yet."""

    @classmethod
    def make(cls, server: bytes = b"") -> Self:
        """Make the keys of a peer of this server, or of a new server."""
        public, secret = zmq.curve_keypair()
        return cls(server=server or public, public=public, secret=secret)


_WANTED = "an IP address of this host, as in tcp://10.0.0.5, tcp://10.0.0.5:7777 or tcp://[::1]"


def tcp_endpoint(bind: str, *, every_interface: bool = False) -> str:
    """Return the endpoint to bind to, or raise `ConfigError`."""
    form = re.fullmatch(r"tcp://(?:\[(.+)\]|([^:]+))(?::([0-9]{1,5}))?", bind)
    address = _address(form[1] or form[2]) if form else None
    port = int(form[3] or 0) if form else 0
    if address is None or port >= 1 << 16:
        raise ConfigError(f"transport.bind must be {_WANTED}, or 'ipc'; got {bind!r}")
    if address.is_unspecified and not every_interface:
        raise ConfigError(
            f"{bind!r} listens on every network of this host: use {_WANTED}, or set "
            "transport.bind_every_interface if that is intended"
        )
    if every_interface and not address.is_unspecified:
        raise ConfigError(
            f"transport.bind_every_interface is set, but {bind!r} is a single address"
        )
    if not zmq.has("curve"):
        raise ConfigError(f"bind is {bind!r}, but this libzmq was built without encryption (CURVE)")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"tcp://{shown}:{port or '*'}"


def advertised(name: str, endpoint: str) -> str:
    """Return where other machines connect to; `endpoint` gives the port that `name` lacks."""
    form = re.fullmatch(
        r"(?:tcp://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?)(?::([0-9]{1,5}))?",
        name,
    )
    port = int(form[2] or 1) if form else 0
    if form is None or not 0 < port < 1 << 16:
        raise ConfigError(
            "transport.advertise must be a host name or an address, with a port if it "
            "differs from the one here, as in learner.example.org, 10.0.0.5:7777 or "
            f"[fd00::5]; got {name!r}"
        )
    return f"tcp://{form[1]}:{form[2] or endpoint.rpartition(':')[2]}"


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def routing_prefix(run_id: str) -> bytes:
    """Return the common prefix of all names of a run.

    So an actor left over from another run cannot take the name of an actor of this run. It must not
    begin with a zero byte, which libzmq reserves.
    """
    return b"\x01" + sha256(run_id.encode()).digest()[:8]


def routing_id(prefix: bytes, peer: Peer, key: bytes = b"") -> bytes:
    """Return the name of a peer in the learner's socket; `key` is its public key, if it has one.

    The learner's socket sends to the last connection of a name, so other peers must not guess it.
    They do not learn the public key, which is only sent encrypted.
    """
    secret = sha256(key).digest()[:16] if key else b""
    return prefix + pack(">qq", peer.actor_id, peer.incarnation) + secret


def make_learner_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    config: ZmqTransportConfig,
    curve: Curve | None = None,
) -> zmq.Socket[bytes]:
    """Make the learner's socket. With `curve`, start a gatekeeper before `listen`."""
    _check_descriptors()
    path = ipc_path(endpoint)
    if path is not None:
        _check_private(path)
    socket = _make_socket(context, zmq.ROUTER, config.max_message_bytes, curve)
    if curve is not None:
        _encrypt(socket, curve, config)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        # Both are needed: without the second, libzmq admits every peer if there is no gatekeeper.
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.LINGER, _LEARNER_LINGER_MS)
    # Report a lost peer as an error instead of dropping its messages silently. And let a peer that
    # reconnects take over its name before the end of its old connection is noticed.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    if path is not None and sys.platform == "linux":
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    return socket


def listen(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind a socket; return its endpoint."""
    path = ipc_path(endpoint)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        socket.bind(endpoint)
        if path is not None:
            path.chmod(0o600)
    except (zmq.ZMQError, OSError) as error:
        why = os.strerror(error.errno or 0)
        advice = _LISTENING_ADVICE.get(error.errno or 0, "")
        raise TransportError(f"cannot listen on {endpoint}: {why}{advice}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


_LISTENING_ADVICE = {
    errno.EADDRINUSE: "; another program has this port: give another one, or none, and the system "
    "chooses a free one",
    errno.EADDRNOTAVAIL: "; no network of this machine has this address: give one that it "
    "has, and by transport.advertise the name or address that other machines know",
    errno.EACCES: "; give a port above 1023",
}


def make_actor_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    name: bytes,
    config: ZmqTransportConfig,
    curve: Curve | None = None,
) -> zmq.Socket[bytes]:
    """Make an actor's socket; the caller connects it to `endpoint`."""
    socket = _make_socket(context, zmq.DEALER, config.max_model_bytes, curve)
    socket.setsockopt(zmq.IPV6, _connects_by_ipv6(endpoint, config.bind))
    socket.setsockopt(zmq.ROUTING_ID, name)
    if curve is not None:
        _encrypt(socket, curve, config)
        socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server)
        # Without it the system's own retries, at growing intervals, continue an attempt that began
        # in a partition: after one of 30 s, actors were back 12 s later, and with it in less than 1
        # s.
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    return socket


def _connects_by_ipv6(endpoint: str, bind: str) -> bool:
    """Whether to look an endpoint's name up as IPv6: libzmq uses one address, of one family.

    A learner that binds to an IPv4 address does not listen on IPv6, nor the reverse.
    """
    if "[" in endpoint or not endpoint.startswith("tcp://"):
        return "[" in endpoint
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    try:
        found = [one[0] for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:  # libzmq tries again
        found = []
    if bind.startswith("tcp://[::]"):  # it listens on both
        return found[:1] == [socket.AF_INET6]
    return "[" in bind or set(found) == {socket.AF_INET6}


def open_zap_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Open the socket on which libzmq asks who may connect; call it before any peer can."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind("inproc://zeromq.zap.01")
    return socket


def open_monitor(watched: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Open the socket on which libzmq reports events of another socket's connections."""
    endpoint = f"inproc://monitor-{id(watched)}"
    watched.monitor(endpoint, events)
    socket: zmq.Socket[bytes] = watched.context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _MAX_EVENTS)
    socket.connect(endpoint)
    return socket


def sender(frame: zmq.Frame) -> str:
    """Return the user whose key a message came with."""
    return str(frame.get("User-Id"))


def release(sockets: Iterable[zmq.Socket[bytes]], context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Close sockets, then their context, which would wait for them."""
    for one in sockets:
        one.close(0)
    context.term()


def poller_of(*readable: zmq.Socket[bytes] | socket.socket) -> zmq.Poller:
    """Return what waits until one of these can be read."""
    poller = zmq.Poller()
    for one in readable:
        poller.register(one, zmq.POLLIN)
    return poller


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether there is something to receive; costs a tenth of a receive that finds nothing."""
    return bool(int(cast(int, socket.getsockopt(_EVENTS))) & _READABLE)


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """Return the frames of the next message without a copy, or None."""
    try:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more:
        frame = socket.recv(copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(frame)
    return frames


def ipc_path(endpoint: str) -> Path | None:
    """Return the file behind an ipc endpoint."""
    return Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None


def _make_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, max_frame_bytes: int, curve: Curve | None
) -> zmq.Socket[bytes]:
    """Create a socket with the options of both sides; most have no effect after bind."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes + (_ENCRYPTION_BYTES if curve else 0))
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    # Credit bounds memory; this only stops a peer that ignores it.
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
    # All calls here are non-blocking; if one is not, it fails instead of waiting.
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.RCVTIMEO, 0)
    return socket


def _encrypt(socket: zmq.Socket[bytes], curve: Curve, config: ZmqTransportConfig) -> None:
    """Set a socket's keys, and the options that a connection over a network needs."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret)
    interval_ms = max(1, round(1000 * config.heartbeat_interval_s))
    socket.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * interval_ms)


def _check_descriptors() -> None:
    """Refuse to start if a few connections would use up the file descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = len(list(Path("/dev/fd").iterdir()))
    if limit != resource.RLIM_INFINITY and limit - used < _SPARE_DESCRIPTORS:
        raise TransportError(
            f"{used} of the {limit} files that this process may open are in use, which leaves too "
            "few for connections; raise the limit (ulimit -n)"
        )


def _check_private(path: Path) -> None:
    """Refuse a path that others can access, or that is in use: bind would take it over."""
    if len(os.fsencode(path)) > _MAX_IPC_PATH:
        raise ConfigError(
            f"the ipc path is longer than {_MAX_IPC_PATH} bytes: {path}; use a shorter directory"
        )
    try:
        directory = path.parent.stat()
    except OSError as error:
        raise ConfigError(f"the directory for {path} cannot be used: {error}") from error
    if directory.st_uid != os.getuid() or stat.S_IMODE(directory.st_mode) & 0o077:
        raise ConfigError(f"{path.parent} must belong to this user and be closed to others (0700)")
    if path.exists():
        raise TransportError(
            f"{path} exists: another learner listens there, or was killed there; "
            "delete it if none is running"
        )
