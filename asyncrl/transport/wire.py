"""Encodes messages as frames and back: a small msgpack header, and arrays as they are in memory.

Touches no sockets. Bytes are not trusted: every size is checked before anything is built from it,
and malformed bytes raise `WireError`, never any other error.

A message is a header frame and array frames. A header is a flat list, `[protocol, kind, run_id,
*fields]`, with the fields in the order of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast, get_args

import msgpack
import numpy as np

from asyncrl.core.errors import ConfigError, WireError
from asyncrl.core.messages import (
    ACTOR_PHASES,
    ActorReport,
    EvaluationReport,
    Experience,
    Hello,
    ModelInfo,
    Peer,
)
from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId, Array, ModelVersion
from asyncrl.transport.protocol import (
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    Refusal,
    Request,
    Subject,
)

WireMessage = (
    Hello
    | Experience
    | ActorReport
    | EvaluationReport
    | Request
    | Ack
    | Finish
    | Refusal
    | Delivery
    | EnvDelivery
)
"""All messages of both sides."""

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
"""Dtypes that arrays of messages may have."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""Their names; asking a dtype for its name takes longer than sending it."""

MAX_EPISODES = 1 << 20
"""Maximum number of episodes in one report."""

MAX_COUNT = 1 << 48
"""Maximum number of steps, transitions or episodes that one incarnation may report. At ten million
per second it takes ten months. The sum over all actors stays far below what a model's fields can
hold."""

MAX_REASON = 1000
"""Maximum length of a refusal's reason in characters; the rest is cut off."""

_MOST_SECONDS = 1e9

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of one array."""


class Fields:
    """The fields of a header, read in order, each checked for type and range."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.kind = "message"
        self._values = iter(values)

    def _next(self, name: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401 (from msgpack)
        value = next(self._values, None)
        # isinstance(True, int) is true, but True is not a valid integer here.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise WireError(f"{self.kind}: {name} is missing or has type {type(value).__name__}")
        return value

    def integer(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Read an integer within a range."""
        value: int = self._next(name, int)
        if not low <= value <= high:
            raise WireError(f"{self.kind}: {name} is {value}, outside {low} to {high}")
        return value

    def count(self, name: str, low: int = 0) -> int:
        """Read a count of what an incarnation has done."""
        return self.integer(name, low, MAX_COUNT)

    def text(self, name: str) -> str:
        """Read a string."""
        return cast(str, self._next(name, str))

    def number(self, name: str) -> float:
        """Read a number."""
        return float(self._next(name, (int, float)))

    def flag(self, name: str) -> bool:
        """Read a boolean."""
        return cast(bool, self._next(name, bool))

    def peer(self) -> Peer:
        """Read the sender."""
        actor_id, incarnation = self.integer("actor_id", -(2**63)), self.integer("incarnation")
        return Peer(actor_id=ActorId(actor_id), incarnation=incarnation)

    def subject(self, *subjects: Subject) -> Any:  # noqa: ANN401 (one of them)
        """Read a subject; it must be one of these."""
        if (subject := self.text("subject")) not in subjects:
            raise WireError(f"{self.kind}: there is no subject {subject[:40]!r}")
        return subject

    def numbers(self, name: str) -> dict[str, float]:
        """Read a mapping of names to numbers."""
        values: dict[Any, Any] = self._next(name, dict)
        for key, value in values.items():
            if not isinstance(key, str) or type(value) not in {int, float}:
                raise WireError(f"{self.kind}: {name} must map names to numbers")
        return {key: float(value) for key, value in values.items()}

    def layout(self, limit: int) -> list[Entry]:
        """Read names, dtypes and shapes of arrays of at most `limit` bytes in total."""
        entries: dict[str, Entry] = {}
        for value in self._next("params", list):
            match value:
                case [str(name), str(dtype), *shape] if dtype in DTYPES and len(shape) <= 32:
                    entries[name] = (name, dtype, tuple(shape))
                case _:
                    raise WireError(f"{self.kind}: a parameter is not [name, dtype, *shape]")
            if not all(type(extent) is int and 0 <= extent <= limit for extent in shape):
                raise WireError(f"{self.kind}: parameter {name[:40]!r} has an impossible shape")
            # An extent of 0 must not hide others whose product numpy cannot compute.
            limit -= prod(extent or 1 for extent in shape) * DTYPES[dtype].itemsize
            if limit < 0:
                raise WireError(f"{self.kind}: exceeds the size limit at {name[:40]!r}")
        return list(entries.values())

    def end(self) -> None:
        """Raise if there are further fields."""
        if next(self._values, self) is not self:
            raise WireError(f"{self.kind}: its header has too many fields")


def view(name: str, data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a frame as a read-only array; its size must match exactly."""
    if data.nbytes != (size := prod(shape) * dtype.itemsize):
        raise WireError(f"column {name!r}: {data.nbytes} bytes, not {size}")
    return part(data, dtype, shape, 0)


def part(data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> Array:
    """Return a part of a frame as a read-only array; the caller has checked its size."""
    count = prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    # In one call, and over a buffer that is read-only: both for speed.
    return np.ndarray(shape, dtype, data.toreadonly(), at)


def put_peer(peer: Peer) -> tuple[int, int]:
    """Return the fields of the sender."""
    return int(peer.actor_id), int(peer.incarnation)


def _put_numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def put_actor_report(m: ActorReport, most: int) -> tuple[list[Any], list[memoryview]]:
    """Return the fields and arrays of a report, with at most `most` episodes, the newest."""
    if len(m.episode_returns) != len(m.episode_lengths):
        raise WireError(
            f"ActorReport: {len(m.episode_returns)} returns and {len(m.episode_lengths)} lengths"
        )
    returns = np.ascontiguousarray(m.episode_returns[-most:], np.float64)
    lengths = np.ascontiguousarray(m.episode_lengths[-most:], np.int64)
    return [*put(m), len(returns)], [returns.data, lengths.data]


def _take_shares(fields: Fields, name: str) -> dict[str, float]:
    """Read the seconds spent per phase, which are summed over the run."""
    shares = fields.numbers(name)
    for phase, seconds in shares.items():
        if phase not in ACTOR_PHASES or not 0 <= seconds <= _MOST_SECONDS:
            raise WireError(f"{fields.kind}: shares has {seconds} s in {phase[:40]!r}")
    return shares


def take_actor_report(fields: Fields, arrays: list[memoryview]) -> ActorReport:
    """Decode a report from its fields and arrays."""
    values = take(ActorReport, fields)
    if values["info_sums"].keys() != values["info_counts"].keys():
        raise WireError("ActorReport: info_sums and info_counts have different names")
    n = fields.integer("ended", 0, MAX_EPISODES)
    if len(arrays) != 2:
        raise WireError(f"ActorReport: {len(arrays)} arrays, not 2")
    return ActorReport(
        **values,
        episode_returns=view("episode_returns", arrays[0], DTYPES["float64"], (n,)),
        episode_lengths=view("episode_lengths", arrays[1], DTYPES["int64"], (n,)),
    )


_Field = tuple[Callable[[Any], Any], Callable[[Fields, str], Any]]
"""How a field is written, and how it is read."""

_COUNT: _Field = int, Fields.count
_NUMBER: _Field = int, Fields.integer
_FROM_1: _Field = int, lambda fields, name: fields.integer(name, 1)
_VERSION: _Field = int, lambda fields, name: fields.integer(name, -1)
_ANY: _Field = int, lambda fields, name: fields.integer(name, -(2**63))
_TEXT: _Field = str, Fields.text
_NUMBERS: _Field = _put_numbers, Fields.numbers
_SUBJECT: _Field = str, lambda fields, _: fields.subject(*get_args(Subject))

_FROM_ACTOR = Hello, ActorReport, EvaluationReport, Request
"""Their headers begin with the sender."""

_HEADERS: Mapping[type[WireMessage], Mapping[str, _Field]] = {
    Hello: {"schema_hash": _TEXT, "software": _TEXT},
    ActorReport: {
        "seq": _FROM_1,
        **dict.fromkeys(("produced", "env_steps", "episodes"), _COUNT),
        "shares": (_put_numbers, _take_shares),
        **dict.fromkeys(("info_sums", "info_counts", "policy"), _NUMBERS),
        "final": (bool, Fields.flag),
    },
    EvaluationReport: {
        "seq": _FROM_1,
        "model_version": _VERSION,
        "score": (float, Fields.number),
        "record": _NUMBERS,
    },
    Request: {"subject": _SUBJECT, "have": _ANY},
    Ack: dict.fromkeys(("seq", "reports", "granted"), _NUMBER),
    Finish: {},
    Refusal: {"reason": (lambda reason: reason[:MAX_REASON], Fields.text)},
    EnvDelivery: {"number": _FROM_1, "kwargs": _TEXT},
}
"""The fields of headers, in order; all that most messages have."""


def put(m: WireMessage) -> list[Any]:
    """Return the fields of a header."""
    fields = [write(getattr(m, name)) for name, (write, _) in _HEADERS[type(m)].items()]
    return [*put_peer(m.peer), *fields] if isinstance(m, _FROM_ACTOR) else fields


def take(cls: type[WireMessage], fields: Fields) -> dict[str, Any]:
    """Return the fields of a header by name."""
    values: dict[str, Any] = {"peer": fields.peer()} if cls in _FROM_ACTOR else {}
    return values | {name: read(fields, name) for name, (_, read) in _HEADERS[cls].items()}


PROTOCOL = 14
"""Protocol version. Raise it whenever the layout of any message changes."""

Frame = bytes | bytearray | memoryview

MAX_HEADER_BYTES = 256 << 10
MAX_ENTRIES = 1024
_ALIGNMENT = 8

# A header up to this size, as those of experience have, cannot do harm: at most a third of it can
# be nested lists, each of at most that many values, for which msgpack allocates memory in advance.
FREE_BYTES = 384
# Up to this number of values in a header are harmless, whatever they are. Beyond it, all values
# together may take at most eight times the memory of the message.
_FREE_VALUES = 4096
_BYTES_PER_VALUE = 20
# Bytes from one msgpack value to the next, by its first byte. Small strings include their content;
# the contents of lists and maps are separate values.
_STEP = [1] * 256
_STEP[0xA0:0xC0] = range(1, 33)
for _tag, _step in {
    **dict.fromkeys((0xCC, 0xD0, 0xD9), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xDA, 0xDC, 0xDE), 3),
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDB, 0xDD, 0xDF), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
}.items():
    _STEP[_tag] = _step


class ForeignRun(WireError):
    """A valid message of another run: usually from an actor that outlived its learner."""


class ForeignProtocol(WireError):
    """A message of another version of asyncrl, whose layout is unknown here."""


_KINDS: tuple[type[WireMessage], ...] = get_args(WireMessage)
_KIND_OF = {cls: kind for kind, cls in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """The encoding of one run. Both sides build it from the same schema, run id and limits."""

    schema: SegmentSchema
    run_id: str
    max_message_bytes: int = 64 << 20
    max_model_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for column in self.schema.columns:
            if column.dtype not in DTYPES:
                raise ConfigError(
                    f"column {column.name!r}: dtype {column.dtype!r} cannot be sent;"
                    f" use one of {', '.join(DTYPES)}"
                )
        if self.max_segments < 1:
            raise ConfigError(
                f"one segment has {self.schema.segment_bytes} bytes, more than "
                f"max_message_bytes={self.max_message_bytes}; raise that limit or lower "
                "segment.length"
            )
        if not 0 < len(self.run_id) <= 128:
            raise ConfigError(f"a run id must have 1 to 128 characters, got {len(self.run_id)}")

    @property
    def max_segments(self) -> int:
        """Maximum number of segments in one message."""
        return self.max_message_bytes // max(1, self.schema.segment_bytes)

    @property
    def max_episodes(self) -> int:
        """Maximum number of episodes in one report; each takes 8 bytes in each of its frames."""
        return min(MAX_EPISODES, max(1, self.max_message_bytes // 8))

    def encode(self, message: WireMessage) -> list[Frame]:
        """Return the frames of a message; arrays are not copied, except those of a model."""
        try:
            fields: list[Any]
            arrays: Sequence[Frame] = ()
            match message:
                case Experience():
                    fields, arrays = self._put_experience(message)
                case Delivery():
                    fields, arrays = self._put_model(message)
                case ActorReport():
                    fields, arrays = put_actor_report(message, self.max_episodes)
                case _:
                    fields = put(message)
            kind = _KIND_OF[type(message)]
            header = pack([kind, self.run_id, *fields])
        except (TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
            raise WireError(f"cannot encode {type(message).__name__}: {error}") from error
        if len(header) > MAX_HEADER_BYTES:
            raise WireError(f"{type(message).__name__}: its header would have {len(header)} bytes")
        _check_values(header, arrays)
        return [header, *arrays]

    def decode(self, frames: Sequence[Frame]) -> WireMessage:
        """Return the message in these frames; its arrays are read-only views of them."""
        if not frames:
            raise WireError("a message without frames")
        fields = unpack(frames[0], frames[1:])
        kind = fields.integer("kind", 0, len(_KINDS) - 1)
        cls = _KINDS[kind]
        fields.kind = cls.__name__
        if (run_id := fields.text("run_id")) != self.run_id:
            raise ForeignRun(f"{fields.kind} of another run, {run_id[:40]!r}")
        message = self._take(cls, fields, [memoryview(frame) for frame in frames[1:]])
        fields.end()
        return message

    def _take(
        self, cls: type[WireMessage], fields: Fields, arrays: list[memoryview]
    ) -> WireMessage:
        if cls is Experience:
            return self._take_experience(fields, arrays)
        if cls is Delivery:
            return self._take_model(fields, arrays)
        if cls is ActorReport:
            return take_actor_report(fields, arrays)
        if arrays:
            raise WireError(f"{cls.__name__}: {len(arrays)} unexpected frames")
        return cls(**take(cls, fields))

    def _put_experience(self, m: Experience) -> tuple[list[Any], list[memoryview]]:
        n, schema = len(m.rows), self.schema
        if not 1 <= n <= self.max_segments:
            raise WireError(f"Experience: {n} segments, expected 1 to {self.max_segments}")
        if len(m.columns) != len(schema.columns):
            raise WireError(f"Experience: columns {sorted(m.columns)} are not those of the schema")
        arrays = [_raw("rows", m.rows, DTYPES["int64"], (n,))]
        for c in schema.columns:
            shape = (n, schema.rows, *c.shape)
            arrays.append(_raw(c.name, m.columns[c.name], DTYPES[c.dtype], shape))
        counts = (m.seq, n, m.transitions, m.produced, m.env_steps, m.model_version)
        return [*put_peer(m.peer), *map(int, counts)], arrays

    def _take_experience(self, fields: Fields, arrays: list[memoryview]) -> Experience:
        peer, seq = fields.peer(), fields.integer("seq", 1)
        schema = self.schema
        n = fields.integer("segments", 1, self.max_segments)
        transitions = fields.integer("transitions", 0, n * schema.length)
        produced = fields.count("produced", transitions)
        env_steps, version = fields.count("env_steps"), fields.integer("model_version", -1)
        if len(arrays) != 1 + len(schema.columns):
            raise WireError(f"Experience: {len(arrays)} arrays, not {1 + len(schema.columns)}")
        rows = view("rows", arrays[0], DTYPES["int64"], (n,))
        if int(rows.min()) < 1 or int(rows.max()) > schema.rows:
            raise WireError(f"Experience: row counts outside 1 to {schema.rows}")
        columns = {
            c.name: view(c.name, data, DTYPES[c.dtype], (n, schema.rows, *c.shape))
            for c, data in zip(schema.columns, arrays[1:], strict=True)
        }
        real = (np.arange(schema.rows) < rows[:, None]) & (columns["flags"] < END)
        if transitions != (found := np.count_nonzero(real[:, schema.sampled])):  # for the ledger
            raise WireError(f"Experience: {found} transitions, its header says {transitions}")
        return Experience(
            peer=peer,
            seq=seq,
            columns=columns,
            rows=rows,
            transitions=transitions,
            produced=produced,
            env_steps=env_steps,
            model_version=ModelVersion(version),
        )

    def _put_model(self, m: Delivery) -> tuple[list[Any], list[Frame]]:
        layout = []
        for name, array in m.model.params.items():
            if array.dtype.name not in DTYPES:
                raise WireError(f"parameter {name!r}: dtype {array.dtype} cannot be sent")
            layout.append((name, array.dtype.name, array.shape))
        offsets, size = _offsets(layout)
        if size > self.max_model_bytes:
            raise WireError(f"a model of {size} bytes; max_model_bytes = {self.max_model_bytes}")
        # One copy into one block makes it a snapshot; every actor is sent the same block.
        block = np.empty(size, np.uint8)
        for (name, dtype, shape), at in zip(layout, offsets, strict=True):
            target = block[at : at + prod(shape) * DTYPES[dtype].itemsize].view(DTYPES[dtype])
            target.reshape(shape)[...] = m.model.params[name]
        spec = [[name, dtype, *map(int, shape)] for name, dtype, shape in layout]
        counts = map(int, (m.model.version, m.model.env_steps, m.model.n_actors))
        return [m.subject, *counts, spec], [block.data]

    def _take_model(self, fields: Fields, arrays: list[memoryview]) -> Delivery:
        topic, version = fields.subject(*get_args(Topic)), fields.integer("version", -1)
        env_steps, n_actors = fields.integer("env_steps"), fields.integer("n_actors")
        layout = fields.layout(self.max_model_bytes)
        offsets, size = _offsets(layout)
        if len(arrays) != 1 or arrays[0].nbytes != size:
            raise WireError(f"model: {[a.nbytes for a in arrays]} bytes, its header says {size}")
        params = {
            name: part(arrays[0], DTYPES[dtype], shape, at)
            for (name, dtype, shape), at in zip(layout, offsets, strict=True)
        }
        model = ModelInfo(
            version=ModelVersion(version), params=params, env_steps=env_steps, n_actors=n_actors
        )
        return Delivery(topic, model)


def pack(fields: list[Any]) -> bytes:
    """Return a header that begins with the protocol."""
    return cast(bytes, msgpack.packb([PROTOCOL, *fields]))


def unpack(header: Frame, arrays: Sequence[Frame]) -> Fields:
    """Return the fields of a header behind the protocol; check their number by the arrays' size."""
    size = memoryview(header).nbytes
    if size > MAX_HEADER_BYTES:
        raise WireError(f"a header of {size} bytes, more than {MAX_HEADER_BYTES}")
    _check_values(header, arrays)
    try:
        values = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            max_str_len=size,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=min(size, 4 * MAX_ENTRIES),
            max_map_len=MAX_ENTRIES,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise WireError(f"a header that is not msgpack: {error!r:.200}") from error
    if not isinstance(values, list):
        raise WireError(f"a header that is not a list but {type(values).__name__}")
    fields = Fields(values)
    if (protocol := fields.integer("protocol")) != PROTOCOL:
        raise ForeignProtocol(
            f"the other side speaks protocol {protocol}, this side {PROTOCOL}: install the same"
            " version of asyncrl on all machines"
        )
    return fields


def _check_values(header: Frame, arrays: Sequence[Frame]) -> None:
    """Refuse a header with too many values, or too long lists, for the message's size.

    An empty list takes one byte there and 64 here. A nested list that announces thousands of values
    takes three bytes there, and memory for all of them here. Steps from value to value without
    building any; malformed headers are left to msgpack.
    """
    if memoryview(header).nbytes <= FREE_BYTES:
        return
    header = bytes(header)
    message_bytes = len(header) + sum(memoryview(array).nbytes for array in arrays)
    most = _FREE_VALUES + message_bytes // _BYTES_PER_VALUE
    at = count = announced = 0
    while at < len(header) and count <= most and announced <= len(header):
        tag = header[at]
        at += _STEP[tag]
        if 0xD9 <= tag <= 0xDB:  # a string with its length in 1, 2 or 4 bytes
            at += int.from_bytes(header[at - (1 << tag - 0xD9) : at])
        elif 0x90 <= tag <= 0x9F:
            announced += tag & 0xF
        elif 0xDC <= tag <= 0xDD:  # a list with its length in 2 or 4 bytes
            announced += int.from_bytes(header[at - (2 << tag - 0xDC) : at])
        count += 1
    if count > most:
        raise WireError(f"a header with more than {most} values, too many for its size")
    if announced > len(header):
        raise WireError(f"a header of {len(header)} bytes whose lists announce {announced} values")


def _offsets(layout: Sequence[Entry]) -> tuple[list[int], int]:
    """Return where each array begins in a model's block, and the size of the block."""
    offsets, at = [], 0
    for _, dtype, shape in layout:
        offsets.append(at)
        at += -(-prod(shape) * DTYPES[dtype].itemsize // _ALIGNMENT) * _ALIGNMENT
    return offsets, at


def _raw(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> memoryview:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise WireError(
            f"column {name!r}: {array.dtype}{array.shape}, not contiguous {dtype}{shape}"
        )
    return array.data
