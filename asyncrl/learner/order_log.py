"""The file in which `order.py` keeps the order of a run: its records, and the events in them.

Records, see `checkpoint/record_file.py`, are of four kinds: HEAD, what the run says about itself in
JSON; MESSAGE, stored experience; EVENTS, a few bytes each; and END.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncrl.checkpoint.record_file import read_records
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array, Columns, IntArray, Params

FORMAT = 1


class Kind(IntEnum):
    """Kinds of records."""

    HEAD = 0
    MESSAGE = 1
    EVENTS = 2
    END = 3


class Pushed(NamedTuple):
    """The next segments of the oldest message were pushed into the replay."""

    segments: int


class Sampled(NamedTuple):
    """Transitions were sampled."""

    transitions: int


class Reprioritised(NamedTuple):
    """The TD errors of the newest batch were set in the replay."""


class Took(NamedTuple):
    """The next batch was taken."""


class Learns(NamedTuple):
    """An optimisation step begins."""

    env_steps: int
    """Environment steps of the run."""


class Threads(NamedTuple):
    """Torch computes with another number of threads."""

    number: int


class Published(NamedTuple):
    """A model was published."""

    opt_steps: int
    checksum: int


Event = Pushed | Sampled | Reprioritised | Took | Learns | Threads | Published
_KINDS: tuple[type[Event], ...] = (
    Pushed,
    Sampled,
    Reprioritised,
    Took,
    Learns,
    Threads,
    Published,
)
CODES = {kind: bytes([code]) for code, kind in enumerate(_KINDS)}
"""The byte with which an event begins. Its numbers follow, each by `packed`."""


def checksum_of(params: Params) -> int:
    """Return the CRC-32 of a model's names and parameters."""
    checksum = 0
    for name, value in params.items():
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, checksum)
    return checksum


_SMALL = [bytes([n]) for n in range(128)]


def packed(number: int) -> bytes:
    """Return a number as 7 bits a byte, lowest first; the highest bit says that more follow."""
    if number < 128:
        return _SMALL[number]
    packed = bytearray()
    while number >= 128:
        packed.append(number & 127 | 128)
        number >>= 7
    packed.append(number)
    return bytes(packed)


class OrderFile:
    """Reads what `RecordedOrder` has written."""

    def __init__(self, path: Path) -> None:
        """Read the first record; raise `CheckpointError` if it is missing or damaged."""
        self.path = path
        self._records = read_records(path)
        first = next(self._records, None)
        if first is None or first.kind != Kind.HEAD:
            raise CheckpointError(f"{path} ends before the run has begun")
        self.head: dict[str, Any] = json.loads(first.payload)
        """What the run says about itself."""
        if self.head.get("format") != FORMAT:
            raise CheckpointError(f"{path} is of another version of asyncrl; replay it with that")
        self._columns = [
            (name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in self.head["columns"]
        ]
        self._messages: deque[tuple[dict[str, Array], IntArray]] = deque()
        self._first = self._env_steps = 0
        self.event_bytes = self.experience_bytes = 0
        """Sizes of what was read."""
        self.ended = False
        """Whether the end was read, which a run writes that is not killed."""

    def events(self) -> Iterator[Event]:
        """Yield the events in their order; take the experience of `Pushed` by `pop`.

        Raises `CheckpointError` at the first record that is damaged.
        """
        for record in self._records:
            match record.kind:
                case Kind.MESSAGE:
                    self.experience_bytes += len(record.payload)
                    self._messages.append(self._message(record.payload))
                case Kind.EVENTS:
                    self.event_bytes += len(record.payload)
                    yield from map(self._with_sum, _events(record.payload))
                case Kind.END:
                    self.ended = True

    def pop(self, segments: int) -> tuple[Columns, IntArray]:
        """Return the columns and row counts of the next segments."""
        columns, rows = self._messages[0]
        part = slice(self._first, self._first + segments)
        self._first += segments
        if self._first == len(rows):
            self._messages.popleft()
            self._first = 0
        return {name: column[part] for name, column in columns.items()}, rows[part]

    def _with_sum(self, event: Event) -> Event:
        """Return the environment steps so far where the file has those since the last step."""
        if not isinstance(event, Learns):
            return event
        self._env_steps += event.env_steps
        return Learns(self._env_steps)

    def _message(self, payload: bytes) -> tuple[dict[str, Array], IntArray]:
        count, at = int.from_bytes(payload[:4], "little"), 4
        arrays = []
        parts = [("rows", np.dtype(np.int64), ()), *self._columns]
        for name, dtype, shape in parts:
            whole = (count, *shape) if name == "rows" else (count, self.head["rows"], *shape)
            n = int(np.prod(whole))
            arrays.append(np.frombuffer(payload, dtype, n, at).reshape(whole))
            at += n * dtype.itemsize
        rows, *columns = arrays
        return {c[0]: column for c, column in zip(self._columns, columns, strict=True)}, rows


def _events(payload: bytes) -> Iterator[Event]:
    at = 0
    while at < len(payload):
        kind = _KINDS[payload[at]]
        at += 1
        numbers = []
        for field in kind._fields:
            if field == "checksum":
                number, size = int.from_bytes(payload[at : at + 4], "little"), 4
            else:
                number, size = _unpacked(payload, at)
            numbers.append(number)
            at += size
        yield kind(*numbers)


def _unpacked(payload: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the bytes that it takes."""
    number = size = 0
    while True:
        byte = payload[at + size]
        number |= (byte & 127) << (7 * size)
        size += 1
        if byte < 128:
            return number, size
