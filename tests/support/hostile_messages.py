"""Hostile messages: changed bytes and fields, and bombs for the memory.

What a decoder is fed with, by tests and by the chaos bench. All of it is drawn from one message of
each kind that there is.
"""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack
import numpy as np

from asyncrl.core.errors import WireError
from asyncrl.core.inference import InferenceAnswer, InferenceRequest
from asyncrl.core.launcher import ActorExit
from asyncrl.core.messages import EvaluationReport
from asyncrl.fleet.host_messages import plain_exit
from asyncrl.transport import wire
from asyncrl.transport.inference_wire import InferenceMessage, InferenceWire
from asyncrl.transport.protocol import (
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    Refusal,
    Request,
)
from asyncrl.transport.wire import WireFormat, WireMessage
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_report,
)

WIRE = WireFormat(schema=SCHEMA, run_id="a run", max_message_bytes=1 << 20, max_model_bytes=1 << 20)
VERSION = make_model(1).version
_OBS = {"obs": np.ones((2, 3), np.float32)}

EXAMPLES: list[WireMessage] = [
    make_hello(),
    make_experience(1),
    make_report(),
    EvaluationReport(peer=PEER, model_version=VERSION, score=1.5, record={"a": 1.0}, seq=2),
    Request(PEER, "act", 3),
    Ack(6, 2, 4),
    Finish(),
    Refusal("a reason"),
    Delivery("act", make_model(1)),
    EnvDelivery(1, '{"gravity": [1.0, 2.0]}'),
]
INFERENCE = InferenceWire(WIRE)
INFERENCE_EXAMPLES: list[InferenceMessage] = [
    InferenceRequest(peer=PEER, number=3, inputs=_OBS),
    InferenceAnswer(number=3, version=VERSION, env_steps=8, outputs=_OBS, error="a reason"),
]
MESSAGES = [
    [bytes(frame) for frame in frames]
    for frames in (*map(WIRE.encode, EXAMPLES), *map(INFERENCE.encode, INFERENCE_EXAMPLES))
]
_TELLING = bytes.fromhex("007f80819091a0c0c4c7cbcfd9dcdddedfff")
"""Bytes that begin something, in msgpack."""

CONSTANT_BYTES = 512 << 10
"""Of memory that decoding may take however short a message is."""


def accepted(frames: list[bytes]) -> bool:
    """Decode in both ways; anything but a message or a `WireError` fails the test."""
    as_other, as_inference = reads(WIRE.decode, frames), reads(INFERENCE.decode, frames)
    return as_other or as_inference


def reads(decode: Callable[[list[bytes]], object], frames: list[bytes]) -> bool:
    """Whether a decoder reads a message and raises no `WireError`."""
    try:
        decode(frames)
    except WireError:
        return False
    return True


def change_bytes(chance: random.Random, frame: bytes, other: bytes) -> bytes:
    """Return a frame with bytes set, put in, taken out, doubled, or from another frame."""
    data = bytearray(frame)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data) + 1)
        size = chance.choice((1, 1, 1, 2, 4, 8, 60))
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes([chance.choice(_TELLING)])
        elif kind == 1:
            data[at : at + size] = chance.randbytes(size)
        elif kind == 2:
            data[at:at] = chance.randbytes(size)
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = data[at : at + size] * chance.choice((1, 2, 200))
        else:
            start = chance.randrange(len(other) + 1)
            data[at : at + size] = other[start : start + size]
    return bytes(data)


def change_fields(chance: random.Random, head: bytes) -> bytes:
    """Return a header that is well formed, with other values."""
    fields = msgpack.unpackb(head)
    strange: list[Any] = [None, True, -1, 0, 2**63, 2**64 - 1, 0.5, float("nan"), "", "text"]
    strange += ["\0" * 300, b"", [], {}, {"a": 1}, {"a": "b"}, [[]], [1] * 99]
    strange += [[["w", "float32", 2**62]], [["w", "object", 1]]]
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(fields) + 1)
        fields[at : at + chance.randrange(2)] = [chance.choice(strange)]
    packed: bytes = msgpack.packb(fields)
    return packed


def hostile(
    chance: random.Random, of: Sequence[Sequence[bytes]] = MESSAGES, birds: Sequence[bytes] = ()
) -> list[bytes]:
    """Return the frames of one of these messages with parts of others, or with a canary."""
    frames, other = list(chance.choice(of)), list(chance.choice(of))
    for _ in range(chance.randrange(1, 3)):
        kind = chance.randrange(6)
        if kind == 0:
            frames[0] = change_fields(chance, chance.choice(of)[0])
        elif kind == 1:
            frames[chance.randrange(len(frames))] = chance.choice(other)
        elif kind == 2:
            frames.insert(chance.randrange(len(frames) + 1), chance.choice(other))
        elif kind == 3 and len(frames) > 1:
            del frames[chance.randrange(len(frames))]
        else:
            at = chance.randrange(len(frames)) if kind == 4 else 0
            frames[at] = change_bytes(chance, frames[at], chance.choice(other))
    if birds and chance.random() < 0.3:
        frames[chance.randrange(len(frames))] = chance.choice(birds)
    return frames


_STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**53, 2**64, 10**400, 0.5, -1e308, float("inf"), float("nan"), ""),
    *("text", "x" * 300, "\ud800", "\x1b[2J\0\n", [], {}, [[]], [0, 0], [0] * 999, {"": {}}),
)
_WORDS: tuple[dict[str, Any], ...] = (
    *({"leaves": "a reason"}, {"keys": ["x" * 40]}, plain_exit(ActorExit(peer=PEER, code=1))),
    *({word: [0, 0]} for word in "join launch kill finish progress said ask answer end".split()),
)
"""What hosts and learners say, here of an actor of another host."""


def twisted(chance: random.Random, plain: Any) -> Any:  # JSON
    """Return JSON of which one part is missing, or something else."""
    if not isinstance(plain, dict | list) or not plain or chance.random() < 0.2:
        return chance.choice(_STRANGE)
    at = chance.choice([*plain] if isinstance(plain, dict) else range(len(plain)))
    changed: Any = plain.copy()
    if chance.random() < 0.2:
        del changed[at]
    else:
        changed[at] = twisted(chance, plain[at])
    return changed


def nonsense(chance: random.Random, data: bytes) -> bytes:
    """Return a message of a host that has become another one, or none."""
    if chance.random() < 0.1:
        return change_bytes(chance, data, data)
    message = json.loads(data)
    if message["items"]:
        chance.choice(message["items"])[1] = chance.choice(_WORDS)
    return json.dumps(twisted(chance, message)).encode()


def costs(frames: list[bytes], decode: Callable[[list[bytes]], object] = accepted) -> int:
    """Return the bytes of memory that decoding takes at its peak, each time.

    It is measured twice: msgpack interns the names of maps, and the interpreter's table of names
    grows by megabytes at once, in whichever message fills it. It never grows twice in a row.
    """
    return min(_peak_bytes(frames, decode), _peak_bytes(frames, decode))


def _peak_bytes(frames: list[bytes], decode: Callable[[list[bytes]], object]) -> int:
    tracemalloc.start()
    try:
        decode(frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def start_of(message: WireMessage, fields: int) -> list[Any]:
    """Return the first fields of a message's header."""
    frames = MESSAGES[[type(example) for example in EXAMPLES].index(type(message))]
    values: list[Any] = msgpack.unpackb(frames[0])
    return values[:fields]


def array16(n: int) -> bytes:
    """Return the head of a msgpack array of n items."""
    return b"\xdc" + n.to_bytes(2, "big")


def bombs() -> Iterator[tuple[str, list[bytes]]]:
    """Yield what takes the most memory for its size, by name."""
    for total in (300, wire.FREE_BYTES, wire.FREE_BYTES + 1, 30_000):
        for most in {min(total, 4096), 4096}:
            yield f"lists within lists, of {most}, {total}", [array16(most) * (total // 3)]
    for name, value in {
        "empty lists": b"\x90",
        "empty maps": b"\x80",
        "maps of one": b"\x81\xa0\x00",
        "wide texts": b"\xa5a\xf0\x9f\x98\x80",
        "large numbers": b"\xcf" + b"\x7f" * 8,
    }.items():
        for total in (1_000, wire.MAX_HEADER_BYTES):
            inner = array16(200) + value * 200
            n = min(total // len(inner), 4096)
            yield f"{name}, {total}", [array16(n) + inner * n]
            yield f"{name}, flat, {total}", [array16(4096) + value * min(4096, total // len(value))]
    names = {f"{i:04d}": 1 for i in range(1024)}
    fields = [*start_of(make_report(), 9), names, names, True, 0]
    yield "report of many names", [msgpack.packb(fields), b"", b""]
    episodes = 100_000
    fields = [*start_of(make_report(), 9), {}, {}, True, episodes]
    lengths = np.arange(1 << 40, (1 << 40) + episodes).tobytes()
    yield "report of many episodes", [msgpack.packb(fields), os.urandom(8 * episodes), lengths]
    layout = [[f"{i:04d}", "bool", 0] for i in range(4096)]
    fields = [*start_of(Delivery("act", make_model(1)), 7), layout]
    yield "model of many parts", [msgpack.packb(fields), b""]
    for text in ("[" + "{}," * 80_000 + "{}]", "a" * 250_000 + "\U0001f600"):
        frames = WIRE.encode(EnvDelivery(1, text))
        yield f"arguments of environments, {text[:4]}", [bytes(frame) for frame in frames]
    yield "deep", [b"\x91" * wire.MAX_HEADER_BYTES]
    yield "too large", [b"\x90" * (1 << 20)]
