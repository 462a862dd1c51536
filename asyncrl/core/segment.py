"""Segments: consecutive rows of one environment, stored once, readable on their own.

A row is an observation and the action taken there; the next observation is in the next row. The
true last observation of an episode is a row too, with the flag `END`, in which only `obs` and
`flags` have a meaning:

    row      0      1      2      3      4      5
    obs      o0     o1     o2     o3*    o0'    o1'      o3* is where the episode ended
    action   a0     a1     a2     -      a0'    a1'
    reward   r1     r2     r3     -      r1'    r2'
    flags    0      0      TERM   END    0      0

A segment has `length` rows that can be sampled and `lookahead` further rows for their n-step
returns, which are repeated at the start of the environment's next segment. A shorter segment, sent
when an actor finishes, ends with an `END` row, so every transition has its successor.

If observations are stacks of frames, a row has the newest frame only. `lookback` rows come first,
which repeat the end of the environment's last segment, so that every stack can be rebuilt:

    |<- lookback ->|<-- length: can be sampled -->|<- lookahead ->|

No stack reaches back across an `END` row: instead of earlier frames it repeats the episode's first
one. An actor's stream begins with `lookback` rows that are `END` rows without further meaning. If a
stream is cut before an update, the rows before its closing `END` row are repeated like any others.

Does not know how segments are filled or sent.
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
"""Column that a step processor fills for agents that ask for it: the episode's discounted return so
far."""

LARGEST_REWARD = 10.0
"""Where normalised returns are clipped: the first reward after n steps without any would be as
large as the root of n."""

TERMINATED = np.uint8(1)
"""The environment ended the episode in this transition: nothing follows, bootstrap with 0."""

TRUNCATED = np.uint8(2)
"""Something outside ended the episode in this transition: bootstrap from the next row."""

END = np.uint8(4)
"""No transition: the observation after the last one of an episode or of an actor."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column: its name, and dtype and shape of one row."""

    name: str
    dtype: str
    """Name of a numpy dtype: `float32`, `uint8`, ..."""

    shape: tuple[int, ...] = ()
    start: bool = field(default=False, compare=False)
    """Whether batches need it only from the first row of a trajectory or a sequence, such as the
    recurrent state at that time."""

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

    frame_stack: Annotated[int, Within("[1, inf)", why="1 stores whole observations")] = 1
    """Frames per observation, stacked along its first axis, newest last. Only the newest frame of
    each stack is sent and stored; batches contain whole stacks again. 1 keeps observations
    whole."""

    def __post_init__(self) -> None:
        check_declared(self, "segment")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchema:
    """The columns and the size of every segment of a run; both sides must use the same."""

    columns: tuple[ColumnSpec, ...]
    length: int
    lookahead: int
    frame_stack: int = 1

    @property
    def lookback(self) -> int:
        """Rows before those that can be sampled: the older frames of the first row's stack."""
        return self.frame_stack - 1

    @property
    def sampled(self) -> slice:
        """The rows of a segment that can be sampled."""
        return slice(self.lookback, self.lookback + self.length)

    @property
    def rows(self) -> int:
        """Rows of a full segment."""
        return self.lookback + self.length + self.lookahead

    @property
    def segment_bytes(self) -> int:
        """Bytes of a full segment."""
        return self.rows * sum(column.row_bytes for column in self.columns)

    def hash(self) -> str:
        """Return a short name; different schemas have different names."""
        extent = self.length, self.lookahead, self.frame_stack
        text = repr((extent, [(c.name, c.dtype, c.shape) for c in self.columns]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_schema(
    columns: Iterable[ColumnSpec], *, length: int, lookahead: int, frame_stack: int = 1
) -> SegmentSchema:
    """Build a schema; check that its columns are distinct and of fixed size."""
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
