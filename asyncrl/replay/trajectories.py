"""A queue of trajectories for on-policy agents: each transition is handed out once, oldest first.

A trajectory is a segment: T = `segment.length` rows of one environment, of any number of episodes.
Start columns are 0 where an episode begins. If they are not 0 after an `END` row, the episode was
cut there, as into clips, and what follows is a separate trajectory. A batch of B of them has

    obs            (B, T + 1, ...)   the next observation of row t is that of row t + 1
    action, ...    (B, T, ...)       and the other columns, the agent's own among them
    reward         (B, T)
    discount       (B, T)            gamma; 0 where the episode terminated
    mask           (B, T)            bool: rows that are transitions
    start columns  (B, ...)          of the first row, see `start_columns`

Row t is not a transition if its `obs` is the last one of an episode, or if a trajectory ended
before it. There `mask` is False, reward and discount are 0, and other columns repeat a
transition's. Backward sums therefore need no special case for episodes: with values of T + 1 rows,

    delta[t] = reward[t] + discount[t] * value[t + 1] - value[t]
    advantage[t] = mask[t] * (delta[t] + discount[t] * lambda * advantage[t + 1])

bootstraps from the true last observation where an episode was truncated, and restarts after it.
Unroll a memory over all T + 1 rows, and reset it after each masked row.

`batch_size` counts transitions, but segments are handed out whole. A batch has up to one segment
more or fewer; over many batches the number is the one asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np

from asyncrl.checkpoint.array_file import collected
from asyncrl.core.agent import BatchKind
from asyncrl.core.declared import COMMON, Count, Share, check_declared
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.segment import END, TERMINATED, SegmentSchema
from asyncrl.core.types import Array, ArrayStream, BoolArray, Columns, IntArray, Params
from asyncrl.replay.files import (
    COLUMN,
    QueueStream,
    check_columns,
    check_kind,
    check_names,
    kind_state,
    push_saved,
)
from asyncrl.replay.ring_config import check_holds_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQueueConfig:
    """Size of the queue, and the discount.

    The rate limiter keeps it far shorter than its capacity: to a message and a batch.
    """

    capacity: Annotated[Count, COMMON] = 100_000
    """Maximum number of transitions. Beyond it the oldest are discarded."""

    gamma: Annotated[Share, COMMON] = 0.99
    """Discount factor per step."""

    start_columns: tuple[str, ...] = ()
    """The agent's columns that are needed only in the first row of a trajectory: its memory."""

    batch_kind: ClassVar[BatchKind] = "trajectories"

    def __post_init__(self) -> None:
        check_declared(self, "replay")

    @property
    def once(self) -> bool:
        """Each transition is handed out once."""
        return True

    @property
    def lookahead(self) -> int:
        """The row after the last one: its observation is the last row's next observation."""
        return 1

    def build(self, schema: SegmentSchema, seed: int) -> TrajectoryQueue:
        """Return an empty queue; nothing in it is random."""
        return TrajectoryQueue(self, schema)


class TrajectoryQueue:
    """Segments in order of arrival."""

    def __init__(self, config: TrajectoryQueueConfig, schema: SegmentSchema) -> None:
        if schema.lookahead < config.lookahead:
            raise ConfigError(
                "trajectories need the row after their last one; make segments with lookahead=1"
            )
        check_holds_segment(config.capacity, schema)
        own = [c.name for c in schema.columns if c.name not in {"obs", "reward", "flags"}]
        if unknown := set(config.start_columns) - set(own):
            raise ConfigError(
                f"replay.start_columns names {sorted(unknown)}, which rows do not have; they have "
                f"{own}"
            )
        self._config = config
        self._schema = schema
        self._row_columns = [name for name in own if name not in config.start_columns]
        self._segments: deque[_Segment] = deque()
        self._len = 0
        self._owed = 0  # transitions asked for and not yet handed out

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self._config.capacity

    @property
    def once(self) -> bool:
        """Each transition is handed out once."""
        return True

    def __len__(self) -> int:
        return self._len

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy segments in; return their number of transitions."""
        copies = {c.name: np.array(columns[c.name]) for c in self._schema.columns}
        sampled = self._schema.sampled
        copies["flags"][np.arange(self._schema.rows) >= rows[:, None]] = END
        real = copies["flags"] < END
        counts = np.count_nonzero(real[:, sampled], axis=1)
        for i in counts.nonzero()[0]:
            segment = {name: column[i] for name, column in copies.items()}
            self._segments += self._parts(_Segment(segment, real[i], int(counts[i])))
        pushed = int(counts.sum())
        self._len += pushed
        while self._len > self._config.capacity:
            self._len -= self._segments.popleft().transitions
        return pushed

    def sample(self, batch_size: int) -> Columns:
        """Hand out the oldest segments."""
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        self._owed += batch_size
        taken: list[_Segment] = []
        while self._segments and (self._owed > 0 or not taken):
            segment = self._segments.popleft()
            self._owed -= segment.transitions
            self._len -= segment.transitions
            taken.append(segment)
        return self._batch(taken)

    def state(self) -> Params:
        """Return a copy of the waiting segments, and the number of transitions still owed."""
        return collected(self.stream())

    def stream(self, room_bytes: int | None = None) -> ArrayStream:
        """Return the same piece by piece, without extra memory: no segment is overwritten."""
        others = {"kind": kind_state(self), "owed": np.array([self._owed])}
        return QueueStream(self._schema, (s.columns for s in self._segments), others)

    def load_state(self, state: Params) -> None:
        """Load the whole state, or raise `CheckpointError` and change nothing."""
        schema = self._schema
        check_kind(state, self)
        check_names(
            state, {f"{COLUMN}{c.name}" for c in schema.columns} | {"kind", "owed", "schema"}
        )
        check_columns(state, schema)
        owed = state["owed"]
        if owed.shape != (1,) or owed.dtype.kind != "i":
            raise CheckpointError(f"`owed` of the saved queue must be an integer, got {owed}")
        waiting = int(np.count_nonzero(state[f"{COLUMN}flags"][:, schema.sampled] < END))
        if waiting > self.capacity:
            raise CheckpointError(
                f"{waiting} transitions were saved, and replay.capacity={self.capacity} has no "
                "room for all of them; increase it"
            )
        self._segments.clear()
        self._len, self._owed = 0, int(owed[0])
        push_saved(state, schema, self.push)

    def _parts(self, segment: _Segment) -> list[_Segment]:
        """Return a segment whole, or split into parts that begin with a stored memory.

        A nonzero memory after an `END` row belongs to an episode that continues there.
        """
        sampled, real, columns = self._schema.sampled, segment.real, segment.columns
        behind_end = sampled.start + 1 + np.flatnonzero(real[sampled][1:] & ~real[sampled][:-1])
        starts = [columns[name] for name in self._config.start_columns]
        cuts = [int(row) for row in behind_end if any(start[row].any() for start in starts)]
        if not cuts:
            return [segment]
        parts = []
        for first, end in pairwise([sampled.start, *cuts, sampled.stop]):
            to_front = np.roll(np.arange(len(real)), sampled.start - first)
            part = {name: column[to_front] for name, column in columns.items()}
            # The first of these rows has the next observation.
            part["flags"][sampled.start + end - first :] = END
            reals = part["flags"] < END
            if count := int(np.count_nonzero(reals[sampled])):
                parts.append(_Segment(part, reals, count))
        return parts

    def _batch(self, segments: list[_Segment]) -> dict[str, Array]:
        sampled = self._schema.sampled
        mask = np.stack([segment.real[sampled] for segment in segments])
        # Each row's own index, or that of a nearby transition if it is not one.
        last_real = np.maximum.accumulate(np.where(mask, np.arange(mask.shape[1]), -1), axis=1)
        near = np.where(last_real < 0, mask.argmax(axis=1)[:, None], last_real)
        which = np.arange(len(segments))[:, None]

        def rows(name: str) -> Array:
            stacked = np.stack([segment.columns[name][sampled] for segment in segments])
            return stacked if mask.all() else stacked[which, near]

        batch = {name: rows(name) for name in self._row_columns}
        for name in self._config.start_columns:
            batch[name] = np.stack([s.columns[name][sampled.start] for s in segments])
        goes_on = mask & ((rows("flags") & TERMINATED) == 0)
        batch["reward"] = np.where(mask, rows("reward"), np.float32(0))
        batch["discount"] = goes_on * np.float32(self._config.gamma)
        batch["mask"] = mask
        batch["obs"] = self._observations(segments)
        return batch

    def _observations(self, segments: list[_Segment]) -> Array:
        """Return the observations of the sampled rows and of the one after them."""
        first, end = self._schema.sampled.start, self._schema.sampled.stop + 1
        n_frames = self._schema.frame_stack
        frames = np.stack([segment.columns["obs"][:end] for segment in segments])
        if n_frames == 1:
            return frames
        flags = np.stack([segment.columns["flags"][:end] for segment in segments])
        before = np.arange(first, end)[:, None] - np.arange(1, n_frames)
        inside = np.logical_and.accumulate(flags[:, before] < END, axis=-1)
        # The first frame of an episode fills the missing frames before it.
        back = np.zeros((*inside.shape[:2], n_frames), np.int64)
        back[..., :-1] = inside.cumsum(axis=-1)[..., ::-1]
        which = np.arange(len(segments))[:, None, None]
        stacks: Array = frames[which, np.arange(first, end)[:, None] - back]
        return stacks


@dataclass(frozen=True, slots=True)
class _Segment:
    columns: Columns
    real: BoolArray
    """Which of its rows are transitions."""
    transitions: int
    """Number of transitions that can be sampled."""
