"""Replays in files: saved from a run, loaded into any kind of replay.

    save_replay(trainer.buffer, Path("data/pendulum"))
    buffer = load_replay(Path("data/pendulum"), UniformReplayConfig(capacity=200_000), seed=0)

A checkpoint of a run holds its replay, too, unless `save_replay` is off: `load_replay` takes the
path of one checkpoint, or that of their directory, whose newest one it loads.

The files are checkpoints: arrays beside a manifest with their hashes, written so that a crash
leaves no half of one. All of it is checked before a buffer is made, and nothing is unpickled. The
path is a link to a hidden folder beside it: to copy it somewhere else, take `cp -rL`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from asyncrl.checkpoint.array_file import let_go
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.replay_buffer import (
    REPLAY,
    KeepsState,
    ReplayBuffer,
    ReplayBufferConfig,
    replay_groups,
)
from asyncrl.core.segment import END, ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Array, Columns, IntArray, Params, Shapes

_PIECE_BYTES = 16 << 20

COLUMN = "column/"
"""Before the names of columns in a state."""


def kind_state(replay: object) -> Array:
    """Return the name of a replay's class as text in bytes."""
    return np.frombuffer(type(replay).__name__.encode(), np.uint8).copy()


def kind_of(state: Params) -> str:
    """Return the name of the class that saved a state."""
    if "kind" not in state:
        raise CheckpointError("what was saved holds no replay: it does not say of which kind")
    return state["kind"].tobytes().decode(errors="replace")


def check_kind(state: Params, replay: object) -> None:
    """Refuse the state of another class."""
    if (saved := kind_of(state)) != type(replay).__name__:
        raise CheckpointError(
            f"the saved replay is a {saved}, and this one a {type(replay).__name__}; "
            "asyncrl.replay.files.load_replay fills one with another's segments"
        )


def check_names(state: Params, expected: Collection[str]) -> None:
    """Refuse a state that lacks an array, or has one that is unknown here."""
    if missing := sorted(set(expected) - set(state)):
        raise CheckpointError(
            f"the saved replay has no {missing[0]}; the columns of its rows are others"
        )
    if unknown := sorted(set(state) - set(expected)):
        raise CheckpointError(
            f"the saved replay has {unknown[0]}, which is unknown here; the columns of its rows "
            "are others"
        )


def schema_state(schema: SegmentSchema) -> Array:
    """Return a schema as text in bytes."""
    return np.frombuffer(json.dumps(asdict(schema)).encode(), np.uint8).copy()


def schema_of(state: Params) -> SegmentSchema:
    """Return the schema of saved segments, or refuse what is none."""
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
        raise CheckpointError(f"what was saved holds no replay: no schema, {error!r}") from error
    return schema


def check_columns(state: Params, schema: SegmentSchema) -> int:
    """Refuse segments that are not those of a schema; return how many there are."""
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
                f"the saved replay contradicts itself: its column {column.name} is {found.dtype} "
                f"of shape {found.shape}, expected {column.dtype} of {shape}"
            )
    return n_saved


def push_saved(
    state: Params,
    schema: SegmentSchema,
    push: Callable[[Columns, IntArray], int],
    first: int = 0,
) -> None:
    """Push segments that have been checked, the `first` first, the one before it last.

    A piece at a time, so that a replay that is mapped from its file is never in memory twice.
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
            let_go(columns.values())


def check_numbers(name: str, value: Array, count: int, dtype: str) -> Array:
    """Return an array of so many numbers that are finite and not negative, or refuse it."""
    plain = value.shape == (count,) and value.dtype == dtype
    if not plain or not np.isfinite(value).all() or (value < 0).any():
        raise CheckpointError(
            f"the saved replay's {name} must be {count} numbers of dtype {dtype}, finite and not "
            f"negative, got {value.dtype} of shape {value.shape}"
        )
    return value


def generator_state(random: np.random.Generator) -> Array:
    """Return what a generator goes on from."""
    return np.frombuffer(json.dumps(random.bit_generator.state).encode(), np.uint8).copy()


def prepare_generator(random: np.random.Generator, state: Array) -> Callable[[], None]:
    """Return what lets a generator go on from a state, or refuse it."""
    try:
        numbers = json.loads(state.tobytes())
        type(random.bit_generator)().state = numbers
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            "the saved replay's random is no state of a "
            f"{type(random.bit_generator).__name__}: {error}"
        ) from error
    return lambda: setattr(random.bit_generator, "state", numbers)


def save_replay(buffer: ReplayBuffer, path: Path) -> Path:
    """Write a replay to disk, piece by piece; return where it is.

    What was at `path` before is replaced when all is written.
    """
    if not isinstance(buffer, KeepsState):
        raise CheckpointError(
            f"a {type(buffer).__name__} cannot be saved: it has no method `state()` that returns "
            "what it holds"
        )
    meta = {"kind": type(buffer).__name__, "size": len(buffer)}
    return Checkpointer(path.parent).save(path.name, replay_groups(buffer, save=True), meta)


def load_replay(path: Path, config: ReplayBufferConfig, *, seed: int) -> ReplayBuffer:
    """Return a buffer with the segments of a saved one, which draws from `seed` on.

    Where it is of the same kind, priorities are those that were saved; else all its transitions
    are new to it. Raises `CheckpointError` if what was saved is not whole, or has no room.
    """
    state = _read(path).groups.get(REPLAY)
    if state is None:
        raise CheckpointError(
            f"{path} holds no replay; runs save theirs with every checkpoint unless "
            "save_replay is off"
        )
    schema = schema_of(state)
    buffer = config.build(schema, seed)
    if isinstance(buffer, KeepsState) and kind_of(state) == type(buffer).__name__:
        own = buffer.state()
        buffer.load_state({**state, **{k: v for k, v in own.items() if k == "random"}})
        return buffer
    n_segments = check_columns(state, schema)
    if n_segments * schema.length > buffer.capacity:
        raise CheckpointError(
            f"{path} has {n_segments} segments, and replay.capacity={config.capacity} is too "
            f"small for them; set it to at least {n_segments * schema.length}"
        )
    first = 0
    if "numbers" in state and n_segments:
        first = int(check_numbers("numbers", state["numbers"], 3, "int64")[0]) % n_segments
    push_saved(state, schema, buffer.push, first)
    return buffer


def _read(path: Path) -> Checkpoint:
    parent = Checkpointer(path.parent)
    if path.name in parent.names():
        return parent.load(path.name, mapped=[REPLAY])
    for directory in (path, path / "checkpoints"):  # of a run, whose directory may be named, too
        if Checkpointer(directory).names():
            return Checkpointer(directory).load_latest(mapped=[REPLAY])
    raise CheckpointError(f"there is neither a saved replay nor a run's checkpoint at {path}")


logger = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""As much is copied at once, and a push that overwrites waits for no more than that."""

_TINY = 0.01
"""A smaller part of the rows may be given up without a word."""


@dataclass(frozen=True, slots=True)
class RingExtent:
    """What a ring holds."""

    next_slot: int
    """Slot of the next segment. If the ring is full, it is that of the oldest segment."""

    oldest: int
    newest: int
    per_slot: IntArray
    """Number of rows of each segment, counted from `oldest`; a copy."""

    full: bool

    @property
    def first_slot(self) -> int:
        """Slot of the oldest segment."""
        return self.next_slot if self.full else 0


class RingStream:
    """Hands a ring's segments over, the oldest first. The ring tells it what it overwrites."""

    def __init__(
        self,
        schema: SegmentSchema,
        extent: RingExtent,
        copy: Callable[[slice | IntArray], dict[str, Array]],
        others: Params,
        by_row: Iterable[str],
        room_bytes: int | None,
    ) -> None:
        """Begin with what a ring holds.

        Args:
            schema: What segments are.
            extent: Which there are.
            copy: Copies the columns of slots as they are then.
            others: What else is to be saved; copies.
            by_row: Those of `others` that have an item for each row.
            room_bytes: What may be kept of what is overwritten; None for all.
        """
        self._schema = schema
        self._extent = extent
        self._copy = copy
        self._others = others
        self._by_row = tuple(by_row)
        n_slots = len(extent.per_slot)
        self._lock = threading.Lock()
        self._room = n_slots if room_bytes is None else room_bytes // schema.segment_bytes
        self._settled = np.zeros(n_slots, np.bool_)  # nothing is to be done about them any more
        self._lost = np.zeros(n_slots, np.bool_)
        self._kept: list[tuple[IntArray, Columns]] = []
        self._closed = False

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the columns."""
        return _shapes(self._schema, len(self._settled))

    def keep(self, slot: int, count: int) -> bool:
        """Copy what so many slots hold before it is overwritten, if that is not too late.

        Returns whether it is to be asked again before the next ones are.
        """
        with self._lock:
            if self._closed:
                return False
            slots = slot + np.flatnonzero(~self._settled[slot : slot + count])
            kept, lost = slots[: self._room], slots[self._room :]
            if len(kept):
                self._kept.append((kept, self._copy(kept)))
                self._room -= len(kept)
            self._lost[lost] = True
            self._settled[slots] = True
            return True

    def pieces(self) -> Iterator[tuple[int, Params]]:
        """Yield columns of segments, and the slot of the first of them."""
        first, n_slots = self._extent.first_slot, len(self._settled)
        step = max(1, PIECE_BYTES // self._schema.segment_bytes)
        for begin, end in ((first, n_slots), (0, first)):
            for at in range(begin, end, step):
                yield at, _named(self._piece(slice(at, min(at + step, end))))

    def rest(self) -> Params:
        """Return what finds the segments again, without those that were given up."""
        extent, lost, others = self._extent, self._lost, dict(self._others)
        n_lost = int(extent.per_slot[lost].sum())
        if n_lost:
            # By age, as rows are.
            per_slot = np.roll(extent.per_slot, -extent.first_slot)
            still_there = np.repeat(~np.roll(lost, -extent.first_slot), per_slot)
            others |= {name: others[name][still_there] for name in self._by_row}
        n_rows = extent.newest - extent.oldest
        if n_lost > _TINY * n_rows:
            logger.warning(
                "the saved replay lacks %d of %d rows: they were overwritten before they were "
                "written. Save less often, or to a faster disk",
                n_lost,
                n_rows,
            )
        numbers = np.array([extent.next_slot, extent.oldest + n_lost, extent.newest])
        return others | {"numbers": numbers, "schema": schema_state(self._schema)}

    def close(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._closed = True
            self._kept, self._others = [], {}

    def _piece(self, part: slice) -> dict[str, Array]:
        with self._lock:
            piece = self._copy(part)
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
        """Copy what was kept of a piece into it; return the other slots that were kept with it."""
        slots, columns = kept
        here = (slots >= part.start) & (slots < part.stop)
        if not here.any():
            return kept
        for name, column in columns.items():
            piece[name][slots[here] - part.start] = column[here]
        self._room += int(here.sum())
        others = ~here
        if not others.any():
            return None
        return slots[others], {name: column[others] for name, column in columns.items()}


class QueueStream:
    """Hands the segments of a queue over, which nobody changes, and forgets them one by one."""

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
        """Yield columns of segments, and the place of the first of them."""
        step = max(1, PIECE_BYTES // self._schema.segment_bytes)
        for at in range(0, self._n_segments, step):
            count = min(step, self._n_segments - at)
            taken = [self._segments.popleft() for _ in range(count)]
            names = [column.name for column in self._schema.columns]
            yield at, _named({n: np.stack([segment[n] for segment in taken]) for n in names})

    def rest(self) -> Params:
        """Return what else there is."""
        return {**self._others, "schema": schema_state(self._schema)}

    def close(self) -> None:
        """Keep nothing any more."""
        self._segments.clear()


def _shapes(schema: SegmentSchema, n_segments: int) -> Shapes:
    return {
        f"{COLUMN}{c.name}": ((n_segments, schema.rows, *c.shape), c.dtype) for c in schema.columns
    }


def _named(columns: Columns) -> dict[str, Array]:
    return {f"{COLUMN}{name}": column for name, column in columns.items()}
