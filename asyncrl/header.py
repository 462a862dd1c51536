"""The header of every message: which fields, in which order, of which type and range.

Knows neither the encoding of a header nor the schema of experience; `wire.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, cast, get_args

import numpy as np

from asyncrl.core.errors import WireError
from asyncrl.core.messages import (
    ACTOR_PHASES,
    ActorReport,
    EvaluationReport,
    Experience,
    Hello,
    Peer,
)
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId, Array, ModelVersion
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

WireMessage = (
    Hello
    | Experience
    | ActorReport
    | EvaluationReport
    | ModelRequest
    | Sync
    | Welcome
    | Ack
    | Finish
    | Refusal
    | Delivery
    | Resend
)
"""Everything that may be said on the wire, by either side."""

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
"""All that may be in an array that travels."""

MAX_EPISODES = 1 << 20
"""The most episodes one report may list."""

MAX_COUNT = 1 << 48
"""The most steps, transitions or episodes that one life of an actor may tell of: at ten million a
second it takes ten months. The sum over all actors stays far below what a model can tell."""

MAX_REASON = 1000
"""Characters of a refusal; more is cut off."""

_MOST_SECONDS = 1e9

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of one array."""


class Fields:
    """The fields of a header, taken in order, each checked for type and range."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.kind = "message"
        self._values = iter(values)

    def _next(self, name: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401 (from msgpack)
        value = next(self._values, None)
        # `True` is an int to isinstance, but not to us.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise WireError(f"{self.kind}: {name} is missing or has type {type(value).__name__}")
        return value

    def integer(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Take an integer within a range."""
        value: int = self._next(name, int)
        if not low <= value <= high:
            raise WireError(f"{self.kind}: {name} is {value}, outside {low} to {high}")
        return value

    def count(self, name: str, low: int = 0) -> int:
        """Take how much a life of an actor has done."""
        return self.integer(name, low, MAX_COUNT)

    def text(self, name: str) -> str:
        """Take a string."""
        return cast(str, self._next(name, str))

    def number(self, name: str) -> float:
        """Take a number."""
        return float(self._next(name, (int, float)))

    def flag(self, name: str) -> bool:
        """Take a boolean."""
        return cast(bool, self._next(name, bool))

    def peer(self) -> Peer:
        """Take who speaks."""
        actor_id, incarnation = self.integer("actor_id", -(2**63)), self.integer("incarnation")
        return Peer(actor_id=ActorId(actor_id), incarnation=incarnation)

    def topic(self) -> Topic:
        """Take a topic that exists."""
        if (topic := self.text("topic")) not in get_args(Topic):
            raise WireError(f"{self.kind}: no such topic, {topic[:40]!r}")
        return cast(Topic, topic)

    def numbers(self, name: str) -> dict[str, float]:
        """Take a mapping of names to numbers."""
        values: dict[Any, Any] = self._next(name, dict)
        for key, value in values.items():
            if not isinstance(key, str) or type(value) not in {int, float}:
                raise WireError(f"{self.kind}: {name} must map names to numbers")
        return {key: float(value) for key, value in values.items()}

    def layout(self, limit: int) -> list[Entry]:
        """Take names, dtypes and shapes of arrays that fit into `limit` bytes together."""
        entries: dict[str, Entry] = {}
        for value in self._next("params", list):
            match value:
                case [str(name), str(dtype), *shape] if dtype in DTYPES and len(shape) <= 32:
                    entries[name] = (name, dtype, tuple(shape))
                case _:
                    raise WireError(f"{self.kind}: a parameter is not [name, dtype, *shape]")
            if not all(type(extent) is int and 0 <= extent <= limit for extent in shape):
                raise WireError(f"{self.kind}: parameter {name[:40]!r} has an impossible shape")
            # An extent of 0 must not hide others that numpy cannot multiply.
            limit -= prod(extent or 1 for extent in shape) * DTYPES[dtype].itemsize
            if limit < 0:
                raise WireError(f"{self.kind}: larger than allowed at {name[:40]!r}")
        return list(entries.values())

    def end(self) -> None:
        """Insist that nothing is left over."""
        if next(self._values, self) is not self:
            raise WireError(f"{self.kind}: its header is too long")


def view(name: str, data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a frame as a read-only array, if it has just the right size."""
    if data.nbytes != (size := prod(shape) * dtype.itemsize):
        raise WireError(f"column {name!r}: {data.nbytes} bytes, not {size}")
    return part(data, dtype, shape, 0)


def part(data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> Array:
    """Return a part of a frame as a read-only array; the caller has checked its size."""
    count = prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype, count, at).reshape(shape)
    array.flags.writeable = False
    return array


def put_peer(peer: Peer) -> tuple[int, int]:
    """Return the fields that say who speaks."""
    return int(peer.actor_id), int(peer.incarnation)


def _put_numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def put_actor_report(m: ActorReport, most: int) -> tuple[list[Any], list[memoryview]]:
    """Return the fields and arrays of a report, of `most` episodes at the most, the newest."""
    if len(m.episode_returns) != len(m.episode_lengths):
        raise WireError(
            f"ActorReport: {len(m.episode_returns)} returns and {len(m.episode_lengths)} lengths"
        )
    returns = np.ascontiguousarray(m.episode_returns[-most:], np.float64)
    lengths = np.ascontiguousarray(m.episode_lengths[-most:], np.int64)
    counts = map(int, (m.produced, m.env_steps, m.episodes))
    mappings = _put_numbers(m.shares), _put_numbers(m.policy)
    fields = [*put_peer(m.peer), int(m.seq), *counts, *mappings, bool(m.final), len(returns)]
    return fields, [returns.data, lengths.data]


def _take_shares(fields: Fields) -> dict[str, float]:
    """Take the seconds spent in phases, which are added up over the run, by phase."""
    shares = fields.numbers("shares")
    for phase, seconds in shares.items():
        if phase not in ACTOR_PHASES or not 0 <= seconds <= _MOST_SECONDS:
            raise WireError(f"{fields.kind}: shares has {seconds} s in {phase[:40]!r}")
    return shares


def take_actor_report(fields: Fields, arrays: list[memoryview]) -> ActorReport:
    """Take a report from its fields and arrays."""
    peer, seq = fields.peer(), fields.integer("seq", 1)
    produced, env_steps = fields.count("produced"), fields.count("env_steps")
    episodes = fields.count("episodes")
    shares, policy = _take_shares(fields), fields.numbers("policy")
    final, n = fields.flag("final"), fields.integer("ended", 0, MAX_EPISODES)
    if len(arrays) != 2:
        raise WireError(f"ActorReport: {len(arrays)} arrays, not 2")
    return ActorReport(
        peer=peer,
        produced=produced,
        env_steps=env_steps,
        episodes=episodes,
        shares=shares,
        episode_returns=view("episode_returns", arrays[0], DTYPES["float64"], (n,)),
        episode_lengths=view("episode_lengths", arrays[1], DTYPES["int64"], (n,)),
        policy=policy,
        final=final,
        seq=seq,
    )


def put(m: WireMessage) -> list[Any]:
    """Return the fields of a message that is a header and nothing else."""
    fields: list[Any] = []
    match m:
        case Hello():
            fields = [*put_peer(m.peer), m.schema_hash, m.software]
        case EvaluationReport():
            record = _put_numbers(m.record)
            counts = int(m.seq), int(m.model_version)
            fields = [*put_peer(m.peer), *counts, float(m.score), record]
        case ModelRequest():
            fields = [*put_peer(m.peer), m.topic, int(m.have), int(m.models)]
        case Sync():
            fields = [*put_peer(m.peer), int(m.sent), int(m.reports)]
        case Ack():
            fields = [int(m.seq), int(m.reports), int(m.models)]
        case Resend():
            fields = [int(m.seq), int(m.reports)]
        case Refusal():
            fields = [m.reason[:MAX_REASON]]
    return fields


def _take_evaluation_report(fields: Fields) -> EvaluationReport:
    return EvaluationReport(
        peer=fields.peer(),
        seq=fields.integer("seq", 1),
        model_version=ModelVersion(fields.integer("model_version", -1)),
        score=fields.number("score"),
        record=fields.numbers("record"),
    )


# Arguments are evaluated from left to right, which is the order of the fields.
TAKE: dict[str, Callable[[Fields], WireMessage]] = {
    "Hello": lambda f: Hello(
        peer=f.peer(), schema_hash=f.text("schema_hash"), software=f.text("software")
    ),
    "EvaluationReport": _take_evaluation_report,
    "ModelRequest": lambda f: ModelRequest(
        f.peer(), f.topic(), f.integer("have", -(2**63)), f.integer("models")
    ),
    "Sync": lambda f: Sync(f.peer(), f.integer("sent"), f.integer("reports")),
    "Welcome": lambda _: Welcome(),
    "Ack": lambda f: Ack(f.integer("seq"), f.integer("reports"), f.integer("models")),
    "Resend": lambda f: Resend(f.integer("seq"), f.integer("reports")),
    "Finish": lambda _: Finish(),
    "Refusal": lambda f: Refusal(f.text("reason")),
}
"""How to take the messages that are a header and nothing else."""
