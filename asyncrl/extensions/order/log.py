"""The file in which `recording.py` keeps the order of a run: its records, and the events in them.

Records, see `checkpoint/record_file.py`, are of four kinds: HEAD, what the run says about itself in
JSON; MESSAGE, stored experience; EVENTS, a few bytes each; and END.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncrl.checkpoint.record_file import read_records
from asyncrl.checkpoint.resume import differences
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
    """0 if it was not computed."""


class Saved(NamedTuple):
    """The state of agent and replay was copied for a checkpoint."""

    number: int
    """1 for the first of a part of a run."""


class Rewards(NamedTuple):
    """The replay computes rewards as other environments do from here on."""

    goal_reward: Any
    """What these environments say about their rewards, in JSON."""


class Resumed(NamedTuple):
    """The run was resumed from its last `Saved`; not in a file, but between two."""

    replay: bool
    """Whether the replay was loaded."""

    changed: tuple[str, ...]
    """Settings that have changed, each as `name: before -> now`."""


FileEvent = Pushed | Sampled | Reprioritised | Took | Learns | Threads | Published | Saved | Rewards
Event = FileEvent | Resumed
_KINDS: tuple[type[FileEvent], ...] = (
    Pushed,
    Sampled,
    Reprioritised,
    Took,
    Learns,
    Threads,
    Published,
    Saved,
    Rewards,
)
CODES = {kind: bytes([code]) for code, kind in enumerate(_KINDS)}
"""The byte with which an event begins. Its numbers follow, each by `packed`; JSON by `as_text`."""


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


def as_text(value: object) -> bytes:
    """Return a value in JSON, after the number of its bytes."""
    text = json.dumps(value).encode()
    return packed(len(text)) + text


def part_of(path: Path, number: int) -> Path:
    """Return the file of a part of a run: 1 began it, the others were resumed."""
    return path if number == 1 else path.with_name(f"{path.name}-{number}")


def next_part(path: Path) -> int:
    """Return the number of the first part without a file."""
    return next(number for number in count(1) if not part_of(path, number).exists())


class OrderLog:
    """The order of a run, also of one that was resumed: the newest part, and what led to it."""

    def __init__(self, path: Path) -> None:
        """Read the first record of each part."""
        number = max(1, next_part(path) - 1)
        self.parts = [OrderFile(part_of(path, number))]
        """Files of the run, in their order."""
        while after := self.parts[0].head["after"]:
            if after["part"] >= number:
                raise CheckpointError(f"{self.parts[0].path} says that it follows a later part")
            number = after["part"]
            self.parts.insert(0, OrderFile(part_of(path, number)))
        self._reads = self.parts[0]

    @property
    def head(self) -> dict[str, Any]:
        """What the run said about itself when it began."""
        return self.parts[0].head

    @property
    def ended(self) -> bool:
        """Whether the end was read, which a run writes that is not killed."""
        return self.parts[-1].ended

    def events(self) -> Iterator[Event]:
        """Yield the events in their order; take the experience of `Pushed` by `pop`.

        Raises `CheckpointError` at the first record that is damaged.
        """
        for follows in self.parts[1:]:
            after = follows.head["after"]
            yield from self._until(after["save"])
            yield Resumed(after["replay"], _changed(self._reads.head, follows.head))
            yield Rewards(follows.head["env"].get("goal_reward"))
            self._reads = follows
        yield from self._reads.events()

    def pop(self, segments: int) -> tuple[Columns, IntArray]:
        """Return the columns and row counts of the next segments."""
        return self._reads.pop(segments)

    def _until(self, save: int) -> Iterator[Event]:
        for event in self._reads.events():
            if isinstance(event, Saved) and event.number == save:
                return
            yield event
        raise CheckpointError(
            f"{self._reads.path} ends before the checkpoint from which the run was resumed"
        )


def _changed(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Return the changed settings on which the bits depend."""
    then, since = before["config"], now["config"]
    names = "agent", "replay", "segment", "seed", "trainer"
    return tuple(
        change for name in names for change in differences(then.get(name), since.get(name), name)
    )


class OrderFile:
    """Reads one file of what `RecordedOrder` has written."""

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

    def events(self) -> Iterator[FileEvent]:
        """Yield its events."""
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

    def _with_sum(self, event: FileEvent) -> FileEvent:
        """Return the environment steps so far where the file has those since the last step."""
        if not isinstance(event, Learns):
            return event
        self._env_steps += event.env_steps
        return Learns(self._env_steps)

    def _message(self, payload: bytes) -> tuple[dict[str, Array], IntArray]:
        segments, at = int.from_bytes(payload[:4], "little"), 4
        arrays = []
        parts = [("rows", np.dtype(np.int64), ()), *self._columns]
        for name, dtype, shape in parts:
            rows_each = () if name == "rows" else (self.head["rows"],)
            whole = (segments, *rows_each, *shape)
            n = int(np.prod(whole))
            arrays.append(np.frombuffer(payload, dtype, n, at).reshape(whole))
            at += n * dtype.itemsize
        rows, *columns = arrays
        return {c[0]: column for c, column in zip(self._columns, columns, strict=True)}, rows


def _events(payload: bytes) -> Iterator[FileEvent]:
    at = 0
    while at < len(payload):
        kind = _KINDS[payload[at]]
        at += 1
        values: list[Any] = []
        for field in kind._fields:
            if field == "checksum":
                value, size = int.from_bytes(payload[at : at + 4], "little"), 4
            else:
                value, size = _unpacked(payload, at)
            if field == "goal_reward":  # the number is that of its bytes
                at, size = at + size, value
                value = json.loads(payload[at : at + size])
            values.append(value)
            at += size
        yield kind(*values)


def _unpacked(payload: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the bytes that it takes."""
    number = size = 0
    while True:
        byte = payload[at + size]
        number |= (byte & 127) << (7 * size)
        size += 1
        if byte < 128:
            return number, size
