"""A replay's content as it is at one moment, handed over piece by piece while others follow.

A ring overwrites its oldest segments, and they are handed over first, so that whoever takes the
pieces is ahead of what is pushed. Where it is not, the ring keeps a copy of what it overwrites; of
a limited size, if that is wanted. Segments for which there is no room are given up: the saved
replay has no rows there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.types import Array, Columns, IntArray, Params, Shapes
from asyncrl.replay_buffers._state import COLUMN, schema_state

logger = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""As much is copied at once, and a push that overwrites waits for no more than that."""

_TINY = 0.01
"""A smaller part of the rows may be given up without a word."""


@dataclass(frozen=True, slots=True)
class RingExtent:
    """What a ring holds."""

    next_slot: int
    """That the next segment goes to: the oldest one's, if the ring is full."""

    oldest: int
    newest: int
    per_slot: IntArray
    """How many of the rows from `oldest` on each segment has; a copy."""

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
