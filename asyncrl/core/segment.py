"""Segments: consecutive rows of one environment, stored once, readable on their own.

A row is one observation and what was done there; the next observation is the next row's. The
true last observation of an episode is a row too, flagged `END`, in which only `obs` and `flags`
mean anything:

    row      0      1      2      3      4      5
    obs      o0     o1     o2     o3*    o0'    o1'      o3* is where the episode ended
    action   a0     a1     a2     -      a0'    a1'
    reward   r1     r2     r3     -      r1'    r2'
    flags    0      0      TERM   END    0      0

A segment holds `length` rows that may be sampled and `lookahead` more, which repeat at the start
of the environment's next segment and give these their n-step returns. A shorter segment, sent
when an actor finishes, closes with an `END` row, so every transition has its successor.

Where observations are stacks of frames, a row holds the newest frame only; `lookback` rows, which
repeat the end of the environment's last segment, come first, so every stack can be built again:

    |<- lookback ->|<-- length: may be sampled -->|<- lookahead ->|

No stack reaches back across an `END` row: frames from before an episode are its first one again.
An actor's stream begins with `lookback` rows that are `END` rows and mean nothing else. Where one
is cut before a round of learning, those before its closing `END` row are repeated like any others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Annotated

import numpy as np

from asyncrl.core.declared import Count, Within, check_declared
from asyncrl.core.errors import ConfigError

DISCOUNTED_RETURN = "discounted_return"
"""Column that a step processor fills for agents that ask for it: the discounted return of the
episode so far."""

TERMINATED = np.uint8(1)
"""The environment ended the episode in this transition: nothing follows, bootstrap with 0."""

TRUNCATED = np.uint8(2)
"""Something outside ended the episode in this transition: bootstrap from the next row."""

END = np.uint8(4)
"""No transition: the observation after an episode's last one, or after an actor's last one."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column: its name, and dtype and shape of one row."""

    name: str
    dtype: str
    """A numpy name: `float32`, `uint8`, ..."""

    shape: tuple[int, ...] = ()
    start: bool = field(default=False, compare=False)
    """Whether batches need it only of the row that a trajectory or a sequence starts from, as what
    an agent remembered there."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * prod(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    """How an actor cuts its stream of rows into segments and messages."""

    length: Count = 32
    """Rows per segment that can be sampled. Longer segments cost less and arrive later."""

    max_message_bytes: Count = 4 << 20
    """Maximum size of a message in bytes. A message is sent when one more segment would exceed
    it."""

    frame_stack: Annotated[int, Within("[1, inf)", why="1 keeps observations whole")] = 1
    """Frames per observation, stacked along its first axis, newest last. Only the newest frame of
    each stack is sent and stored; batches contain whole stacks again. 1 keeps observations
    whole."""

    def __post_init__(self) -> None:
        check_declared(self, "segment")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchema:
    """The columns and the extent of every segment of a run; both sides must agree on it."""

    columns: tuple[ColumnSpec, ...]
    length: int
    lookahead: int
    frame_stack: int = 1

    @property
    def lookback(self) -> int:
        """Rows before those that may be sampled: the older frames of the first one's stack."""
        return self.frame_stack - 1

    @property
    def sampled(self) -> slice:
        """The rows of a segment that may be sampled."""
        return slice(self.lookback, self.lookback + self.length)

    @property
    def rows(self) -> int:
        """Rows of a whole segment."""
        return self.lookback + self.length + self.lookahead

    @property
    def segment_bytes(self) -> int:
        """Bytes of a whole segment."""
        return self.rows * sum(column.row_bytes for column in self.columns)

    def hash(self) -> str:
        """Return a short name that differs whenever two schemas do."""
        extent = self.length, self.lookahead, self.frame_stack
        text = repr((extent, [(c.name, c.dtype, c.shape) for c in self.columns]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_schema(
    columns: Iterable[ColumnSpec], *, length: int, lookahead: int, frame_stack: int = 1
) -> SegmentSchema:
    """Build a schema and check that its columns are distinct and fixed in size."""
    columns = tuple(columns)
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise ConfigError(f"column names must differ, got {names}")
    if missing := {"obs", "flags"} - set(names):
        raise ConfigError(f"a segment needs the columns {sorted(missing)}; it has {names}")
    for column in columns:
        if np.dtype(column.dtype).hasobject:
            raise ConfigError(f"column {column.name!r}: dtype {column.dtype} cannot be stored")
    return SegmentSchema(
        columns=columns, length=length, lookahead=lookahead, frame_stack=frame_stack
    )
