"""Encodes requests to a server of inference and its answers as two frames and back.

As in `wire.py`, bytes are not trusted, and arrays are sent as they are in memory. The header,
`[protocol, kind, run_id, error, layout]`, says what is the same in all messages of an actor. Both
sides remember headers: to read one takes as long as a small network. The body holds counts, which
change from message to message, and then the arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import ge
from typing import Any, Literal

import numpy as np

from asyncrl.core.errors import WireError
from asyncrl.core.inference import InferenceAnswer, InferenceRequest
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId, Columns, ModelVersion
from asyncrl.transport.wire import (
    DTYPE_NAMES,
    DTYPES,
    MAX_HEADER_BYTES,
    MAX_REASON,
    ForeignRun,
    Frame,
    WireFormat,
    pack,
    part,
    unpack,
)

InferenceMessage = InferenceRequest | InferenceAnswer

_Kind = Literal["InferenceRequest", "InferenceAnswer"]

_ANY = -(2**63)
_LEAST = {
    "InferenceRequest": {"actor_id": _ANY, "incarnation": 0, "number": 1},
    "InferenceAnswer": {"number": 1, "version": -1, "env_steps": 0, "n_actors": 0},
}
"""The counts at the beginning of a body, in order, and the smallest value of each."""

_COUNTS = {kind: struct.Struct(f"<{len(least)}q") for kind, least in _LEAST.items()}

_HEADERS = 256
"""Number of headers to remember, in a process: one for each number of rows, in practice."""

_KEPT_BYTES = 4096
"""Longer headers are not remembered: hostile ones would take memory."""


@dataclass(frozen=True, slots=True)
class _Header:
    """A checked header, and what its body must be."""

    kind: str
    error: str
    arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    """Name, dtype and shape of each array, and where it begins."""
    body_bytes: int


class InferenceWire:
    """The encoding of one run's requests and answers."""

    def __init__(self, wire: WireFormat) -> None:
        """Use the run id and the limit of its other messages."""
        self._run_id = wire.run_id
        self._max_bytes = wire.max_message_bytes
        self.max_body_bytes = wire.max_message_bytes + max(c.size for c in _COUNTS.values())

    def encode(self, m: InferenceMessage) -> tuple[Frame, Frame]:
        """Return the header and the body of a message."""
        kind: _Kind
        counts: tuple[int, ...]
        if isinstance(m, InferenceRequest):
            kind, error, columns = "InferenceRequest", "", m.inputs
            counts = m.peer.actor_id, m.peer.incarnation, m.number
        else:
            kind, error, columns = "InferenceAnswer", m.error[:MAX_REASON], m.outputs
            counts = m.number, m.version, m.env_steps, m.n_actors
        layout = tuple([(name, array.dtype, array.shape) for name, array in columns.items()])
        header = _pack(kind, self._run_id, error, layout)
        form = _COUNTS[kind]
        try:
            packed = form.pack(*counts)
        except struct.error as reason:
            raise WireError(f"cannot encode {kind}: {counts}: {reason}") from reason
        body = b"".join([packed, *[np.ascontiguousarray(a).data for a in columns.values()]])
        if (size := len(body) - form.size) > self._max_bytes:
            raise WireError(
                f"{kind}: {size} bytes, more than "
                f"transport.max_message_bytes={self._max_bytes}; raise that limit, or lower "
                "the number of environments per actor"
            )
        return header, body

    def decode(self, frames: Sequence[Frame]) -> InferenceMessage:
        """Return the message in these frames; its arrays are read-only views of the body."""
        if len(frames) != 2:
            raise WireError(f"a message of {len(frames)} frames")
        body = memoryview(frames[1]).toreadonly()
        header = self._header(frames[0])
        if body.nbytes != header.body_bytes:
            raise WireError(f"{header.kind}: {body.nbytes} bytes, not {header.body_bytes}")
        counts = _counts(header.kind, body)
        columns: Columns = {
            name: part(body, dtype, shape, at) for name, dtype, shape, at in header.arrays
        }
        if header.kind == "InferenceRequest":
            actor_id, incarnation, number = counts
            peer = Peer(actor_id=ActorId(actor_id), incarnation=incarnation)
            return InferenceRequest(peer=peer, number=number, inputs=columns)
        number, version, env_steps, n_actors = counts
        return InferenceAnswer(
            number=number,
            version=ModelVersion(version),
            env_steps=env_steps,
            n_actors=n_actors,
            outputs=columns,
            error=header.error,
        )

    def _header(self, frame: Frame) -> _Header:
        if (size := memoryview(frame).nbytes) > MAX_HEADER_BYTES:
            raise WireError(f"a header of {size} bytes, more than {MAX_HEADER_BYTES}")
        read = _read if size <= _KEPT_BYTES else _read.__wrapped__
        return read(bytes(frame), self._run_id, self._max_bytes)


def _counts(kind: str, body: memoryview) -> tuple[int, ...]:
    counts, least = _COUNTS[kind].unpack_from(body), _LEAST[kind]
    if not all(map(ge, counts, least.values())):
        low = [f"{n} is {c}" for n, c in zip(least, counts, strict=True) if c < least[n]]
        raise WireError(f"{kind}: {', '.join(low)}, less than the least of {least}")
    return counts


@lru_cache(_HEADERS)
def _pack(kind: _Kind, run_id: str, error: str, layout: tuple[Any, ...]) -> bytes:
    """Return a header; raise if an array's dtype cannot be sent."""
    for name, dtype, _ in layout:
        if dtype not in DTYPE_NAMES:
            raise WireError(f"{name!r}: dtype {dtype} cannot be sent")
    arrays = [[name, DTYPE_NAMES[dtype], *shape] for name, dtype, shape in layout]
    return pack([kind, run_id, error, arrays])


@lru_cache(_HEADERS)
def _read(header: bytes, run_id: str, max_bytes: int) -> _Header:
    """Return a header that is of this run, and whose arrays may be this large."""
    fields = unpack(header, ())
    kind = fields.text("kind")
    if kind not in _LEAST:
        raise WireError(f"{kind[:40]!r} is no message to or from a server of inference")
    fields.kind = kind
    if (of := fields.text("run_id")) != run_id:
        raise ForeignRun(f"{kind} of another run, {of[:40]!r}")
    error, layout = fields.text("error"), fields.layout(max_bytes)
    fields.end()
    arrays, at = [], _COUNTS[kind].size
    for name, dtype, shape in layout:
        arrays.append((name, DTYPES[dtype], shape, at))
        at += prod(shape) * DTYPES[dtype].itemsize
    return _Header(kind, error, tuple(arrays), at)
