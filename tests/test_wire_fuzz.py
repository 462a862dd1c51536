"""Hostile bytes for the decoder: it says `WireError` or gives a message, and costs little."""

from __future__ import annotations

import io
import os
import pickle
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from asyncrl import header, wire
from asyncrl.errors import WireError
from asyncrl.header import WireMessage
from asyncrl.messages import EvaluationReport
from asyncrl.protocol import (
    Ack,
    Delivery,
    Finish,
    ModelRequest,
    Refusal,
    Resend,
    Sync,
    Welcome,
)
from asyncrl.wire import WireFormat
from tests.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_model,
    make_report,
)

WIRE = WireFormat(schema=SCHEMA, run_id="a run", max_message_bytes=1 << 20, max_model_bytes=1 << 20)
VERSION = make_model(1).version
EXAMPLES: list[WireMessage] = [
    make_hello(),
    make_experience(1),
    make_report(),
    EvaluationReport(peer=PEER, model_version=VERSION, score=1.5, record={"a": 1.0}),
    ModelRequest(PEER, "act", 3),
    Sync(PEER, 4, 5),
    Welcome(),
    Ack(6),
    Finish(),
    Refusal("a reason"),
    Delivery("act", make_model(1)),
    Resend(7),
]
MESSAGES = [[bytes(frame) for frame in WIRE.encode(message)] for message in EXAMPLES]
INTERESTING = (0x00, 0x7F, 0x80, 0x81, 0x90, 0x91, 0xA0, 0xC0, 0xC4, 0xC7, 0xCB, 0xCF, 0xD9, 0xDC)
INTERESTING = (*INTERESTING, 0xDD, 0xDE, 0xDF, 0xFF)
CONSTANT_BYTES = 512 << 10


def test_every_kind_of_message_is_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(wire._KINDS)


def accepted(frames: list[bytes]) -> bool:
    """Decode; anything but a message or a `WireError` fails the test."""
    try:
        WIRE.decode(frames)
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
            data[at : at + 1] = bytes([chance.choice(INTERESTING)])
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
    strange: list[Any] = [
        *(None, True, -1, 0, 2**63, 2**64 - 1, 0.5, float("nan"), "", "text", "\0" * 300, b"", []),
        *(
            {},
            {"a": 1},
            {"a": "b"},
            [[]],
            [["w", "float32", 2**62]],
            [["w", "object", 1]],
            [1] * 99,
        ),
    ]
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(fields) + 1)
        fields[at : at + chance.randrange(2)] = [chance.choice(strange)]
    packed: bytes = msgpack.packb(fields)
    return packed


def hostile(chance: random.Random) -> list[bytes]:
    """Return the frames of one hostile message."""
    frames = list(chance.choice(MESSAGES))
    other = list(chance.choice(MESSAGES))
    for _ in range(chance.randrange(1, 3)):
        kind = chance.randrange(6)
        if kind == 0:
            frames[0] = change_fields(chance, MESSAGES[chance.randrange(len(MESSAGES))][0])
        elif kind == 1:
            frames[chance.randrange(len(frames))] = chance.choice(other)
        elif kind == 2:
            frames.insert(chance.randrange(len(frames) + 1), chance.choice(other))
        elif kind == 3 and len(frames) > 1:
            del frames[chance.randrange(len(frames))]
        else:
            at = chance.randrange(len(frames)) if kind == 4 else 0
            frames[at] = change_bytes(chance, frames[at], chance.choice(other))
    return frames


@pytest.mark.fault("F22")
@pytest.mark.parametrize("seed", range(4))
def test_hostile_messages_raise_nothing_but_wire_errors(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = [accepted(hostile(chance)) for _ in range(5_000)]
    assert 0 < sum(outcomes) < len(outcomes) / 2, "some changes do no harm, most do"


@pytest.mark.slow
@pytest.mark.fault("F22")
@pytest.mark.timeout(3600)
def test_very_many_hostile_messages_raise_nothing_but_wire_errors() -> None:
    chance = random.Random()
    seed = chance.getrandbits(64)
    chance.seed(seed)
    for i in range(2_000_000):
        frames = hostile(chance)
        try:
            accepted(frames)
        except Exception as error:
            raise AssertionError(f"seed {seed}, message {i}: {frames!r:.5000}") from error


# --- memory --------------------------------------------------------------------------------------


def costs(frames: list[bytes]) -> int:
    """Return the bytes of memory that decoding takes at its peak."""
    tracemalloc.start()
    try:
        accepted(frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def start_of(message: WireMessage, fields: int) -> list[Any]:
    """Return the first fields of a message's header."""
    frames = MESSAGES[[type(example) for example in EXAMPLES].index(type(message))]
    values: list[Any] = msgpack.unpackb(frames[0])
    return values[:fields]


def array16(n: int) -> bytes:
    return b"\xdc" + n.to_bytes(2, "big")


def bombs() -> Iterator[tuple[str, list[bytes]]]:
    """Yield what takes the most memory for its size, by name."""
    for name, value in {
        "empty lists": b"\x90",
        "empty maps": b"\x80",
        "lists of one": b"\x91\x00",
        "maps of one": b"\x81\xa0\x00",
        "short texts": b"\xa2ab",
        "wide texts": b"\xa5a\xf0\x9f\x98\x80",
        "numbers": b"\xcd\x10\x00",
        "large numbers": b"\xcf" + b"\x7f" * 8,
    }.items():
        for total in (1_000, 4_000, 30_000, wire.MAX_HEADER_BYTES):
            inner = array16(200) + value * 200
            n = min(total // len(inner), 4096)
            yield f"{name}, {total}", [array16(n) + inner * n]
            yield f"{name}, flat, {total}", [array16(4096) + value * min(4096, total // len(value))]
    names = {f"{i:04d}": 1 for i in range(1024)}
    fields = [*start_of(make_report(), 8), names, names, True, 0]
    yield "report of many names", [msgpack.packb(fields), b"", b""]
    episodes = 100_000
    fields = [*start_of(make_report(), 8), {}, {}, True, episodes]
    lengths = np.arange(1 << 40, (1 << 40) + episodes).tobytes()
    yield "report of many episodes", [msgpack.packb(fields), os.urandom(8 * episodes), lengths]
    layout = [[f"{i:04d}", "bool", 0] for i in range(4096)]
    fields = [*start_of(Delivery("act", make_model(1)), 6), layout]
    yield "model of many parts", [msgpack.packb(fields), b""]
    yield "deep", [b"\x91" * wire.MAX_HEADER_BYTES]
    yield "too large", [b"\x90" * (1 << 20)]


@pytest.mark.fault("F23")
@pytest.mark.parametrize("frames", [pytest.param(bomb, id=name) for name, bomb in bombs()])
def test_no_message_takes_much_more_memory_than_it_has_bytes(frames: list[bytes]) -> None:
    size = sum(map(len, frames))
    assert costs(frames) <= 8 * size + CONSTANT_BYTES


@pytest.mark.fault("F23")
def test_hostile_messages_take_little_memory() -> None:
    chance = random.Random(1)
    for _ in range(500):
        frames = hostile(chance)
        assert costs(frames) <= 8 * sum(map(len, frames)) + CONSTANT_BYTES


# --- code ----------------------------------------------------------------------------------------


class Calls:
    """Pickled, it is a call of a function that makes a directory."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def canaries(mark: Path) -> list[bytes]:
    """Return bytes that leave a mark if anybody unpickles or evaluates them."""
    command = f"import os; os.mkdir({str(mark)!r})"
    calls = [
        Calls(os.mkdir, str(mark)),
        Calls(exec, command),
        Calls(eval, f"__import__('os').mkdir({str(mark)!r})"),
    ]
    found = [pickle.dumps(call, protocol) for call in calls for protocol in range(6)]
    for allow in (Calls(os.mkdir, str(mark)), Calls(exec, command)):
        file = io.BytesIO()
        np.save(file, np.array([allow], object), allow_pickle=True)
        found.append(file.getvalue())
    return [*found, command.encode(), b"!!python/object/apply:os.mkdir [" + bytes(mark) + b"]"]


def in_every_place(canary: bytes) -> Iterator[list[bytes]]:
    """Yield every message with a canary in place of each field and frame, in each of its forms."""
    text = canary.decode("latin1")
    forms = [canary, text, [canary], {text: 1.0}, {"a": canary}, msgpack.ExtType(1, canary)]
    forms.append([[text, "object", 1]])
    for frames in MESSAGES:
        for at in range(len(frames)):
            yield [*frames[:at], canary, *frames[at + 1 :]]
        yield [*frames, canary]
        fields = msgpack.unpackb(frames[0])
        for at in range(len(fields) + 1):
            for form in forms:
                changed = [*fields[:at], form, *fields[at + 1 :]]
                yield [msgpack.packb(changed), *frames[1:]]


@pytest.mark.fault("F22")
def test_pickles_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    found = canaries(mark)
    assert len(found) >= 20
    for canary in found:
        for frames in in_every_place(canary):
            accepted(frames)
    assert not mark.exists()
    pickle.loads(found[0])
    assert mark.exists(), "a canary that cannot sing proves nothing"
    for module in (wire, header):
        assert "pickle" not in Path(module.__file__).read_text(encoding="utf-8")
