"""Strangers at a learner's socket: half a handshake, noise, hostile messages, canaries.

What tests and the chaos bench attack a live socket with. Each attack is one connection.
"""

from __future__ import annotations

import random
import select
import socket

import zmq

from asyncrl.transport.zeromq import ZmqTransport
from tests.support.hostile_messages import change_bytes, hostile

Address = tuple[str, int]

_MESSAGES = 20
"""Hostile ones on each connection that gets as far as sending any."""

_LINGER_MS = 10


def address_of(transport: ZmqTransport) -> Address:
    """Return host and port of a learner that listens over TCP."""
    host, _, port = transport.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def greeting(mechanism: bytes = b"NULL") -> bytes:
    """Return the first 64 bytes of ZMTP 3.0."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def ready() -> bytes:
    """Return the command that ends the handshake of one who needs no keys."""
    words = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    return b"\x04" + bytes([len(words)]) + words


def is_cut(link: socket.socket) -> bool:
    """Read what the learner sends; return whether it has closed the connection."""
    if not select.select([link], [], [], 0.0)[0]:
        return False
    try:
        return not link.recv(65536)
    except ConnectionResetError:
        return True


def attack(address: Address, chance: random.Random, birds: list[bytes]) -> None:
    """Connect once and do harm in one of several ways."""
    kind = chance.randrange(4)
    if kind < 2:
        _send_noise(address, chance, greeted=kind == 0)
    else:
        _send_messages(address, chance, birds, named=kind == 2)


def _send_noise(address: Address, chance: random.Random, *, greeted: bool) -> None:
    start = greeting(chance.choice([b"NULL", b"PLAIN", b"CURVE", b"X"])) if greeted else b""
    rest = ready() * chance.randrange(2) + chance.randbytes(chance.randrange(300))
    with socket.create_connection(address) as link:
        link.sendall(change_bytes(chance, start + rest, greeting()))


def _send_messages(
    address: Address, chance: random.Random, birds: list[bytes], *, named: bool
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = context.socket(chance.choice([zmq.DEALER, zmq.REQ, zmq.PUSH]))
    link.setsockopt(zmq.LINGER, _LINGER_MS)
    if named:
        link.setsockopt(zmq.ROUTING_ID, chance.randbytes(chance.randrange(1, 25)) or b"x")
    link.connect("tcp://{}:{}".format(*address))
    for _ in range(1 if link.type == zmq.REQ else _MESSAGES):
        frames = hostile(chance, birds=birds)
        try:
            link.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            break
    link.close()
    context.term()
