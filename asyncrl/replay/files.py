"""Replays in files: saved from a run, loaded into any kind of replay.

    save_replay(trainer.buffer, Path("data/pendulum"))
    buffer = load_replay(Path("data/pendulum"), UniformReplayConfig(capacity=200_000), seed=0)

A checkpoint of a run also holds its replay, unless `save_replay` is off. `load_replay` takes the
path of one checkpoint, or that of their directory; there it loads the newest.

The files are checkpoints: arrays and a manifest with their hashes, written atomically, so that a
crash never leaves half of one. Everything is checked before a buffer is made, and nothing is
unpickled. The path is a link to a hidden folder beside it; copy it with `cp -rL`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from asyncrl.checkpoint.array_file import evict
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.replay_buffer import (
    REPLAY,
    CountsSamples,
    ReplayBuffer,
    ReplayBufferConfig,
    SavesState,
    replay_groups,
)
from asyncrl.core.segment import END, ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Array, Columns, IntArray, Params, Shapes

_PIECE_BYTES = 16 << 20

COLUMN = "column/"
"""Prefix of column names in a state."""


def kind_state(replay: object) -> Array:
    """Return the name of a replay's class as bytes."""
    return np.frombuffer(type(replay).__name__.encode(), np.uint8).copy()


def kind_of(state: Params) -> str:
    """Return the name of the class that saved a state."""
    if "kind" not in state:
        raise CheckpointError("the checkpoint holds no replay: its state has no entry `kind`")
    return state["kind"].tobytes().decode(errors="replace")


def check_kind(state: Params, replay: object) -> None:
    """Raise if the state is that of another class."""
    if (saved := kind_of(state)) != type(replay).__name__:
        raise CheckpointError(
            f"the saved replay is a {saved}, this one a {type(replay).__name__}; use "
            "asyncrl.replay.files.load_replay to load the segments of one kind into another"
        )


def check_names(state: Params, expected: Collection[str]) -> None:
    """Raise if the state lacks an expected array or has an unknown one."""
    if missing := sorted(set(expected) - set(state)):
        raise CheckpointError(f"the saved replay has no {missing[0]}; its rows have other columns")
    if unknown := sorted(set(state) - set(expected)):
        raise CheckpointError(
            f"the saved replay has {unknown[0]}, which is unknown here; its rows have other columns"
        )


def schema_state(schema: SegmentSchema) -> Array:
    """Return a schema as JSON in bytes."""
    return np.frombuffer(json.dumps(asdict(schema)).encode(), np.uint8).copy()


def schema_of(state: Params) -> SegmentSchema:
    """Return the schema of saved segments; raise if it is invalid."""
    try:
        plain = json.loads(state["schema"].tobytes())
        columns = [
            ColumnSpec(str(c["name"]), str(c["dtype"]), tuple(map(int, c["shape"])))
            for c in plain["columns"]
        ]
        schema = make_schema(
            columns,
            length=int(plain["length"]),
            lookahead=int(plain["lookahead"]),
            frame_stack=int(plain["frame_stack"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint holds no replay: its schema is invalid, {error!r}"
        ) from error
    return schema


def check_columns(state: Params, schema: SegmentSchema) -> int:
    """Return the number of saved segments; raise if they do not match the schema."""
    if (saved := schema_of(state)) != schema:
        differ = [
            f.name for f in fields(schema) if getattr(saved, f.name) != getattr(schema, f.name)
        ]
        raise CheckpointError(
            "the saved replay does not fit this one: its segments differ in "
            + "; ".join(f"{n}: {getattr(saved, n)}, here {getattr(schema, n)}" for n in differ)
        )
    flags = state[f"{COLUMN}flags"]
    n_saved = len(flags) if flags.ndim else 0
    for column in schema.columns:
        found = state[f"{COLUMN}{column.name}"]
        shape = (n_saved, schema.rows, *column.shape)
        if found.shape != shape or found.dtype != column.dtype:
            raise CheckpointError(
                f"the saved replay is inconsistent: its column {column.name} is {found.dtype} "
                f"of shape {found.shape}, expected {column.dtype} of {shape}"
            )
    return n_saved


def push_saved(
    state: Params,
    schema: SegmentSchema,
    push: Callable[[Columns, IntArray], int],
    first: int = 0,
) -> None:
    """Push checked segments in order, starting at index `first` and wrapping around.

    It pushes one piece at a time, so that a memory-mapped replay is never in memory twice.
    """
    columns = {c.name: state[f"{COLUMN}{c.name}"] for c in schema.columns}
    n_saved, piece = len(columns["flags"]), max(1, _PIECE_BYTES // schema.segment_bytes)
    for begin, end in ((first, n_saved), (0, first)):
        for at in range(begin, end, piece):
            part = slice(at, min(at + piece, end))
            push(
                {name: column[part] for name, column in columns.items()},
                np.full(part.stop - part.start, schema.rows),
            )
            evict(columns.values())


def check_numbers(name: str, value: Array, count: int, dtype: str) -> Array:
    """Return an array of `count` numbers; raise unless all are finite and not negative."""
    plain = value.shape == (count,) and value.dtype == dtype
    if not plain or not np.isfinite(value).all() or (value < 0).any():
        raise CheckpointError(
            f"the saved replay's {name} must be {count} numbers of dtype {dtype}, finite and not "
            f"negative, got {value.dtype} of shape {value.shape}"
        )
    return value


def save_replay(buffer: ReplayBuffer, path: Path) -> Path:
    """Write a replay to disk piece by piece; return its path.

    A replay that exists at `path` is replaced when all is written.
    """
    if not isinstance(buffer, SavesState):
        raise CheckpointError(
            f"a {type(buffer).__name__} cannot be saved: it has no method `state()` that returns "
            "its content"
        )
    meta = {"kind": type(buffer).__name__, "size": len(buffer)}
    return Checkpointer(path.parent).save(path.name, replay_groups(buffer, save=True), meta)


def load_replay(path: Path, config: ReplayBufferConfig, *, seed: int) -> ReplayBuffer:
    """Return a buffer filled with the segments of a saved one; `seed` seeds its sampling.

    A buffer of the same kind keeps the saved priorities; otherwise all transitions count as new.
    The exponent of importance weights is reset to `beta`. Raises `CheckpointError` if the saved
    replay is incomplete or does not fit.
    """
    return replay_of(read_saved(path), config, seed=seed)


def replay_of(saved: Checkpoint, config: ReplayBufferConfig, *, seed: int) -> ReplayBuffer:
    """Return a buffer as `load_replay` does, of what `read_saved` has read."""
    state, path = saved.groups.get(REPLAY), saved.path
    if state is None:
        raise CheckpointError(
            f"{path} holds no replay; runs save it with every checkpoint unless save_replay is off"
        )
    schema = schema_of(state)
    buffer = config.build(schema, seed)
    if isinstance(buffer, SavesState) and kind_of(state) == type(buffer).__name__:
        own = buffer.state()
        buffer.load_state({**state, **{k: v for k, v in own.items() if k == "random"}})
        if isinstance(buffer, CountsSamples):
            buffer.resume_at(0)  # its samples are those of another run
        return buffer
    n_segments = check_columns(state, schema)
    if n_segments * schema.length > buffer.capacity:
        raise CheckpointError(
            f"{path} has {n_segments} segments, and replay.capacity={config.capacity} is too small "
            f"for them; set it to at least {n_segments * schema.length}"
        )
    push_saved(state, schema, buffer.push, _oldest(state, n_segments))
    return buffer


def deal(
    states: Sequence[Params],
    buffer: ReplayBuffer,
    schema: SegmentSchema,
    *,
    rank: int,
    world: int,
) -> None:
    """Push one of `world` shares of several saved replays: every `world`-th segment, oldest first.

    Their priorities are not kept: all transitions count as new. Nor is the number of samples, see
    `restore_replay`.
    """
    dealt = 0

    def push(columns: Columns, rows: IntArray) -> int:
        nonlocal dealt
        own = slice((rank - dealt) % world, None, world)
        dealt += len(rows)
        mine = {name: column[own] for name, column in columns.items()}
        return buffer.push(mine, rows[own]) if len(rows[own]) else 0

    for state in states:
        n_segments = check_columns(state, schema)
        push_saved(state, schema, push, _oldest(state, n_segments))


def _oldest(state: Params, n_segments: int) -> int:
    """Return the index of the oldest saved segment: a ring's may be anywhere."""
    if "numbers" not in state or not n_segments:
        return 0
    return int(check_numbers("numbers", state["numbers"], 3, "int64")[0]) % n_segments


def read_saved(path: Path) -> Checkpoint:
    """Return a saved replay, one checkpoint, or the newest of a run; raise without one."""
    parent = Checkpointer(path.parent)
    if path.name in parent.names():
        return parent.load(path.name, mapped=[REPLAY])
    for directory in (path, path / "checkpoints"):  # a run's directory works, too
        if Checkpointer(directory).names():
            return Checkpointer(directory).load_latest(mapped=[REPLAY])
    raise CheckpointError(f"found neither a saved replay nor a checkpoint of a run at {path}")


logger = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""Bytes copied at once. A push that overwrites waits for at most one such piece."""

_TINY = 0.01
"""Share of the rows that may be lost without a warning."""


@dataclass(frozen=True, slots=True)
class RingExtent:
    """The content of a ring."""

    first_slot: int
    """Slot of the oldest segment; the others follow, wrapping around."""

    n_slots: int
    """Number of slots, filled or not."""

    oldest: int
    newest: int
    per_slot: IntArray
    """Number of rows of each segment, counted from `oldest`, oldest first; a copy."""


class RingStream:
    """Returns a ring's segments, oldest first. The ring announces what it overwrites."""

    def __init__(
        self,
        schema: SegmentSchema,
        extent: RingExtent,
        copy: Callable[[slice | IntArray], dict[str, Array]],
        others: Params,
        by_row: Iterable[str],
        room_bytes: int | None,
    ) -> None:
        """Begin with the current content of a ring.

        Args:
            schema: Schema of the segments.
            extent: Which segments the ring holds.
            copy: Copies the columns of slots as they are at the time of the call.
            others: Other arrays to save; copies.
            by_row: Those of `others` that have one item per row.
            room_bytes: Memory for segments that are overwritten meanwhile; None sets no limit.
        """
        self._schema = schema
        self._extent = extent
        self._copy = copy
        self._others = others
        self._by_row = tuple(by_row)
        n_slots = len(extent.per_slot)
        self._lock = threading.Lock()
        self._room = n_slots if room_bytes is None else room_bytes // schema.segment_bytes
        self._settled = np.zeros(n_slots, np.bool_)  # written, kept or lost
        self._lost = np.zeros(n_slots, np.bool_)
        self._kept: list[tuple[IntArray, Columns]] = []
        self._closed = False

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the columns."""
        return _shapes(self._schema, len(self._settled))

    def keep(self, slot: int, count: int) -> bool:
        """Keep a copy of `count` slots that are about to be overwritten, if they are still needed.

        Returns whether to call this again before the next slots are overwritten.
        """
        extent = self._extent
        with self._lock:
            if self._closed:
                return False
            segments = (slot - extent.first_slot + np.arange(count)) % extent.n_slots
            segments = segments[segments < len(self._settled)]  # others are newer than the stream
            segments = segments[~self._settled[segments]]
            kept, lost = segments[: self._room], segments[self._room :]
            if len(kept):
                self._kept.append((kept, self._copy((extent.first_slot + kept) % extent.n_slots)))
                self._room -= len(kept)
            self._lost[lost] = True
            self._settled[segments] = True
            return True

    def pieces(self) -> Iterator[tuple[int, Params]]:
        """Yield columns of segments, with the position of the first one."""
        n_segments = len(self._settled)
        step = max(1, PIECE_BYTES // self._schema.segment_bytes)
        wrap = min(n_segments, self._extent.n_slots - self._extent.first_slot)
        for begin, end in ((0, wrap), (wrap, n_segments)):
            for at in range(begin, end, step):
                yield at, _named(self._piece(slice(at, min(at + step, end))))

    def rest(self) -> Params:
        """Return the index of the segments, without those that were lost."""
        extent, lost, others = self._extent, self._lost, dict(self._others)
        n_lost = int(extent.per_slot[lost].sum())
        if n_lost:
            still_there = np.repeat(~lost, extent.per_slot)  # both sorted by age, as rows are
            others |= {name: others[name][still_there] for name in self._by_row}
        n_rows = extent.newest - extent.oldest
        if n_lost > _TINY * n_rows:
            logger.warning(
                "the saved replay lacks %d of %d rows: they were overwritten before they were "
                "written to disk. Save less often, or to a faster disk",
                n_lost,
                n_rows,
            )
        # The first one is the position of the oldest segment, which other versions save elsewhere.
        numbers = np.array([0, extent.oldest + n_lost, extent.newest])
        return others | {"numbers": numbers, "schema": schema_state(self._schema)}

    def close(self) -> None:
        """Release all kept copies."""
        with self._lock:
            self._closed = True
            self._kept, self._others = [], {}

    def _piece(self, part: slice) -> dict[str, Array]:
        extent = self._extent
        slot = (extent.first_slot + part.start) % extent.n_slots
        with self._lock:
            piece = self._copy(slice(slot, slot + part.stop - part.start))
            self._kept = [rest for kept in self._kept if (rest := self._moved(kept, part, piece))]
            lost = self._lost[part]
            self._settled[part] = True
        for column in piece.values():
            column[lost] = 0
        piece["flags"][lost] = END
        return piece

    def _moved(
        self, kept: tuple[IntArray, Columns], part: slice, piece: Columns
    ) -> tuple[IntArray, Columns] | None:
        """Move kept copies of a piece into it; return the kept copies of others."""
        segments, columns = kept
        here = (segments >= part.start) & (segments < part.stop)
        if not here.any():
            return kept
        for name, column in columns.items():
            piece[name][segments[here] - part.start] = column[here]
        self._room += int(here.sum())
        others = ~here
        if not others.any():
            return None
        return segments[others], {name: column[others] for name, column in columns.items()}


class QueueStream:
    """Returns the segments of a queue and releases them one by one. Nothing else changes them."""

    def __init__(self, schema: SegmentSchema, segments: Iterable[Columns], others: Params) -> None:
        self._schema = schema
        self._segments = deque(segments)
        self._n_segments = len(self._segments)
        self._others = others

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the columns."""
        return _shapes(self._schema, self._n_segments)

    def pieces(self) -> Iterator[tuple[int, Params]]:
        """Yield columns of segments, with the position of the first one."""
        step = max(1, PIECE_BYTES // self._schema.segment_bytes)
        for at in range(0, self._n_segments, step):
            count = min(step, self._n_segments - at)
            taken = [self._segments.popleft() for _ in range(count)]
            names = [column.name for column in self._schema.columns]
            yield at, _named({n: np.stack([segment[n] for segment in taken]) for n in names})

    def rest(self) -> Params:
        """Return the other arrays."""
        return {**self._others, "schema": schema_state(self._schema)}

    def close(self) -> None:
        """Release all kept copies."""
        self._segments.clear()


def _shapes(schema: SegmentSchema, n_segments: int) -> Shapes:
    return {
        f"{COLUMN}{c.name}": ((n_segments, schema.rows, *c.shape), c.dtype) for c in schema.columns
    }


def _named(columns: Columns) -> dict[str, Array]:
    return {f"{COLUMN}{name}": column for name, column in columns.items()}
