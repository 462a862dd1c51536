"""A ring buffer of whole segments, and a list of the rows in it that can be sampled.

Stores each observation once; of stacked frames it stores each frame once. Samples nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from asyncrl.checkpoint.array_file import evict
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.segment import END, TERMINATED, SegmentSchema
from asyncrl.core.types import Array, BoolArray, Columns, IntArray, Params
from asyncrl.replay.files import (
    COLUMN,
    RingExtent,
    RingStream,
    check_columns,
    check_names,
    check_numbers,
    push_saved,
)
from asyncrl.replay.ring_config import RingConfig, Shapes, allocate, announce

if TYPE_CHECKING:
    from asyncrl.replay.on_device import DeviceColumns


def go_on() -> None:
    """Pause nowhere between copies."""


@dataclass(frozen=True, slots=True)
class Returns:
    """n-step returns, and the discounts of their bootstrap values."""

    reward: Array
    last: IntArray
    """Row of the last reward. The bootstrap observation is in the next row."""

    discount: Array
    """Discount of the bootstrap value; 0 where the episode terminated."""


class Ring:
    """Whole segments; the newest overwrite the oldest.

    Rows that can be sampled are numbered in order of arrival, without end. A second ring maps
    numbers to rows. A uniform choice is thus a random number and a look-up, and an old number still
    shows whether its row has been overwritten since.

    There are more slots than segments, so that a part of a message can be copied into free ones
    while another thread samples.
    """

    def __init__(self, config: RingConfig, schema: SegmentSchema) -> None:
        if schema.lookahead < config.lookahead:
            n_step = config.n_step - (config.lookahead - schema.lookahead)
            shorter = f"set replay.n_step={n_step}, or " if n_step > 0 else ""
            raise ConfigError(
                f"this replay (replay.n_step={config.n_step}) reads {config.lookahead} rows beyond "
                f"a sampled one, and segments look {schema.lookahead} ahead; {shorter}make "
                f"segments with lookahead={config.lookahead}"
            )
        announce(config, schema)
        self.schema = schema
        self._n_slots = n_slots = config.all_slots(schema)
        self._n_segments = config.slots(schema)
        self._n_step = config.n_step
        self._discounts = config.gamma ** np.arange(config.n_step + 1, dtype=np.float32)
        self._discount_by_flags = self._discounts[1] * (np.arange(256) & TERMINATED == 0)
        shapes: Shapes = {
            c.name: ((n_slots, schema.rows, *c.shape), c.dtype) for c in schema.columns
        }
        wide: Shapes = {c.name: shapes[c.name] for c in config.wide_columns(schema)}
        self._wide = _on_device(wide, config) if wide else None
        narrow: Shapes = {name: shape for name, shape in shapes.items() if name not in wide}
        self._segments = allocate(narrow, config.memory_map)
        self.columns = {
            name: column.reshape(n_slots * schema.rows, *column.shape[2:])
            for name, column in self._segments.items()
        }
        """All rows of all segments in sequence, except columns on a device."""
        self._next_slot = 0
        self._n_filled = 0
        self._streams: list[RingStream] = []
        self._per_slot = np.zeros(n_slots, np.int64)
        self._rows = np.zeros(n_slots * schema.length, np.int64)
        self.oldest = 0
        """Number of the oldest row that can be sampled."""
        self.newest = 0
        """One more than the number of the newest row."""

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self._n_segments * self.schema.length

    @property
    def nbytes(self) -> int:
        """Bytes of columns and index."""
        columns = sum(column.nbytes for column in self._segments.values())
        wide = self._wide.nbytes if self._wide else 0
        return columns + wide + self._rows.nbytes + self._per_slot.nbytes

    def __len__(self) -> int:
        return self.newest - self.oldest

    def stage(
        self, columns: Columns, rows: IntArray, pause: Callable[[], object]
    ) -> Callable[[], int]:
        """Copy segments in; return what overwrites the oldest with them. See `StagesSegments`."""
        count = len(rows)
        if count > self._n_slots - self._n_segments:
            return partial(self._push, columns, rows)
        transitions = listed = done = 0
        for slot, n in self._runs(self._next_slot, count):
            part = slice(done, done + n)
            counts = self._write(slot, columns, rows, part, self.newest + listed, pause)
            listed += counts[0]
            transitions += counts[1]
            done += n

        def finish() -> int:
            self._remove(count)
            self._add(count, listed)
            return transitions

        return finish

    def rows(self, numbers: IntArray) -> IntArray:
        """Return the positions of the rows with these numbers."""
        n = len(self._rows)
        # Valid numbers lie within two rounds of this; `wrap` is faster than a remainder.
        return self._rows.take(numbers - (self.oldest - self.oldest % n), mode="wrap")

    def take(self, name: str, rows: IntArray) -> Array:
        """Return a column's values in these rows: a tensor if the column is on a device.

        Observations are stacks of frames if the segments' are.
        """
        if name == "obs" and self.schema.frame_stack > 1:
            rows = self._frames(rows)
        if self._wide and name in self._wide.names:
            return self._wide.take(name, rows)
        return self.columns[name].take(rows, axis=0)

    def returns(self, rows: IntArray) -> Returns:
        """Return the n-step returns of these rows."""
        flags = self.columns["flags"]
        if self._n_step == 1:
            discount = self._discount_by_flags.take(flags.take(rows))
            return Returns(self.columns["reward"].take(rows), rows, discount)
        window = self._window(rows)
        steps, reward = self._n_step_sums(window, self.columns["reward"].take(window))
        last = rows + steps - 1
        goes_on = (flags.take(last) & TERMINATED) == 0
        return Returns(reward, last, self._discounts[steps] * goes_on)

    def transitions(self, rows: IntArray) -> dict[str, Array]:
        """Return a batch of transitions; see `ReplayBuffer.sample`."""
        returns = self.returns(rows)
        batch = {
            column.name: self.take(column.name, rows)
            for column in self.schema.columns
            if column.name not in {"obs", "reward", "flags"}
        }
        batch["obs"] = self.take("obs", rows)
        batch["next_obs"] = self.take("obs", returns.last + 1)
        batch["reward"] = returns.reward
        batch["discount"] = returns.discount
        return batch

    def stream(self, others: Params, by_row: Iterable[str], room_bytes: int | None) -> RingStream:
        """Return the current content piece by piece, to be saved with `others`; see `RingStream`.

        Another thread may consume it while this one pushes and reads.
        """
        first = (self._next_slot - self._n_filled) % self._n_slots
        runs = [self._per_slot[slot : slot + n] for slot, n in self._runs(first, self._n_filled)]
        per_slot = np.concatenate([*runs, np.zeros(0, np.int64)])
        extent = RingExtent(first, self._n_slots, self.oldest, self.newest, per_slot)
        stream = RingStream(self.schema, extent, self._copies, others, by_row, room_bytes)
        self._streams.append(stream)
        return stream

    def check(self, state: Params, others: Collection[str]) -> int:
        """Return the number of rows that a state lists; raise `CheckpointError` if it does not fit.

        The arrays named in `others` are not checked.
        """
        columns = {f"{COLUMN}{column.name}" for column in self.schema.columns}
        check_names(state, columns | {*others, "numbers", "schema"})
        n_saved = check_columns(state, self.schema)
        if n_saved > self._n_segments:
            raise CheckpointError(
                f"the saved replay has {n_saved} segments and this one has room for "
                f"{self._n_segments}; set replay.capacity to at least "
                f"{n_saved * self.schema.length}"
            )
        next_slot, oldest, newest = check_numbers("numbers", state["numbers"], 3, "int64").tolist()
        count = int(np.count_nonzero(self._listed(state[f"{COLUMN}flags"] < END)))
        if newest - oldest != count or not next_slot <= n_saved:
            raise CheckpointError(
                f"the saved replay is inconsistent: its {n_saved} segments list {count} rows, "
                f"and its numbers are {[next_slot, oldest, newest]}"
            )
        return count

    def load_state(self, state: Params) -> None:
        """Load a state that has been checked."""
        next_slot, oldest, _ = state["numbers"].tolist()
        n_saved = len(state[f"{COLUMN}flags"])
        for stream in self._streams:  # all slots may be overwritten
            stream.keep(0, self._n_slots)
        self._streams = []
        self._per_slot[:] = 0
        self.oldest = self.newest = oldest
        self._next_slot = self._n_filled = 0
        push_saved(state, self.schema, self._push, next_slot % n_saved if n_saved else 0)

    def _frames(self, rows: IntArray) -> IntArray:
        """Return the rows of the frames in the stack of each of these rows."""
        n_frames = self.schema.frame_stack
        before = rows[..., None] - np.arange(1, n_frames)
        inside = np.logical_and.accumulate(self.columns["flags"].take(before) < END, axis=-1)
        # The first frame of an episode fills the missing frames before it.
        frames = np.empty((*rows.shape, n_frames), np.int64)
        frames[..., -1] = rows
        frames[..., :-1] = rows[..., None] - inside.cumsum(axis=-1)[..., ::-1]
        return frames

    def _copies(self, slots: slice | IntArray) -> dict[str, Array]:
        """Return copies of segments."""
        columns = {name: column[slots] for name, column in self._segments.items()}
        if isinstance(slots, slice):
            views, columns = columns, {name: column.copy() for name, column in columns.items()}
            evict(views.values())  # views of a file need not stay in memory
        return columns | (self._wide.copies(slots) if self._wide else {})

    def _window(self, rows: IntArray) -> IntArray:
        """Return the n rows (..., n) of the n-step return of each row."""
        return rows[..., None] + np.arange(self._n_step)

    def _n_step_sums(self, window: IntArray, rewards: Array) -> tuple[IntArray, Array]:
        """Sum rewards (..., n) over n steps, or up to the row before an `END` row.

        Returns the number of steps, too. The row after an episode's last transition is an `END`
        row, and so is the row after the last one of an actor that finished. Returns never cross
        either.
        """
        open_rows = self.columns["flags"].take(window) < END
        alive = np.logical_and.accumulate(open_rows, axis=-1)
        rewards = rewards * self._discounts[: self._n_step]
        return alive.sum(axis=-1), np.where(alive, rewards, np.float32(0)).sum(axis=-1)

    def _push(self, columns: Columns, rows: IntArray) -> int:
        """Copy segments in, overwriting the oldest; return their number of transitions."""
        transitions = done = 0
        while done < len(rows):
            slot = self._next_slot
            count = min(len(rows) - done, self._n_slots - slot, self._n_segments)
            part = slice(done, done + count)
            self._remove(count)
            listed, new = self._write(slot, columns, rows, part, self.newest, go_on)
            self._add(count, listed)
            transitions += new
            done += count
        return transitions

    def _runs(self, slot: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the first slot and the length of each contiguous run of `count` slots."""
        before_end = min(count, self._n_slots - slot)
        yield slot, before_end
        if count > before_end:
            yield 0, count - before_end

    def _remove(self, count: int) -> None:
        """Remove the rows of the oldest segments from the list, where `count` others need room."""
        slot = (self._next_slot - self._n_segments) % self._n_slots
        if slot + count > self._n_slots:
            self._remove_at(0, slot + count - self._n_slots)
            count = self._n_slots - slot
        self._remove_at(slot, count)

    def _remove_at(self, slot: int, count: int) -> None:
        # Slots that were never filled list no rows.
        self.oldest += int(np.add.reduce(self._per_slot[slot : slot + count]))
        if self._streams:
            self._streams = [s for s in self._streams if s.keep(slot, count)]

    def _write(
        self,
        slot: int,
        columns: Columns,
        rows: IntArray,
        part: slice,
        number: int,
        pause: Callable[[], object],
    ) -> tuple[int, int]:
        """Copy a part of segments into free slots, and their rows into the list, from a number on.

        Returns how many rows it listed, and the number of transitions. The rows cannot be sampled
        until `_add`.
        """
        there = slice(slot, slot + part.stop - part.start)
        for name, column in self._segments.items():
            column[there] = columns[name][part]
            pause()
        if self._wide:
            self._wide.write(slot, {name: columns[name][part] for name in self._wide.names})
        return self._index(slot, rows[part], number, pause)

    def _add(self, count: int, listed: int) -> None:
        """Let the rows of `count` written segments be sampled."""
        self.newest += listed
        self._next_slot = (self._next_slot + count) % self._n_slots
        self._n_filled = min(self._n_filled + count, self._n_segments)

    def _index(
        self, slot: int, rows: IntArray, number: int, pause: Callable[[], object]
    ) -> tuple[int, int]:
        """List the rows of slots; return their number, and that of the transitions."""
        count = len(rows)
        flags = self._segments["flags"][slot : slot + count]
        if np.count_nonzero(rows < self.schema.rows):
            # Makes the segment itself show how much of it is filled.
            flags[np.arange(self.schema.rows) >= rows[:, None]] = END
        real = flags < END
        listed = self._listed(real)
        np.add.reduce(listed, axis=1, dtype=np.int64, out=self._per_slot[slot : slot + count])
        pause()
        # Slots are contiguous in memory, so one number locates a row.
        rows = listed.ravel().nonzero()[0]
        pause()
        at, first_row = number % len(self._rows), slot * self.schema.rows
        before_end = len(self._rows) - at
        np.add(rows[:before_end], first_row, out=self._rows[at : at + len(rows)])
        if len(rows) > before_end:
            np.add(rows[before_end:], first_row, out=self._rows[: len(rows) - before_end])
        return len(rows), self._transitions(real, len(rows))

    def _transitions(self, real: BoolArray, n_listed: int) -> int:
        """Return the number of transitions, given which rows are some, and how many are listed."""
        return n_listed

    def _listed(self, real: BoolArray) -> BoolArray:
        """Return a mask of the rows that can be sampled, given which rows are transitions."""
        listed = real.copy()
        listed[:, : self.schema.sampled.start] = False
        listed[:, self.schema.sampled.stop :] = False
        return listed


def _on_device(shapes: Shapes, config: RingConfig) -> DeviceColumns:
    from asyncrl.replay.on_device import DeviceColumns  # noqa: PLC0415  # torch is slow

    return DeviceColumns(shapes, config.device, what=f"replay.capacity={config.capacity}")
