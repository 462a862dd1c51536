"""Uniform replay: all transitions are sampled with equal probability.

Does not know where segments come from, and holds no lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from asyncrl.checkpoint.array_file import collected
from asyncrl.core.seeding import generator_state, prepare_generator
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.types import Array, ArrayStream, Columns, IntArray, Params
from asyncrl.replay.files import check_kind, kind_state
from asyncrl.replay.ring import Ring, go_on
from asyncrl.replay.ring_config import RingConfig


class Chooser(Protocol):
    """Chooses which rows of a ring are sampled."""

    def follow(self, push: Callable[[], int]) -> int:
        """Push segments into the ring and follow it; return their number of transitions."""
        ...

    def draw(self, count: int) -> tuple[IntArray, Columns]:
        """Return row numbers, and additional columns of their batch."""
        ...

    by_row: ClassVar[tuple[str, ...]]
    """The arrays of its state that have one item per row."""

    def state(self) -> dict[str, Array]:
        """Return a copy of what later samples depend on, except the ring's content."""
        ...

    def prepare(self, state: Params, count: int) -> Callable[[], None]:
        """Check a state for a ring of `count` rows; return what loads it into the filled ring."""
        ...


class Uniformly:
    """Samples with replacement and equal probabilities."""

    by_row: ClassVar[tuple[str, ...]] = ()

    def __init__(self, ring: Ring, seed: int) -> None:
        self._ring = ring
        self._random = np.random.default_rng(seed)

    def follow(self, push: Callable[[], int]) -> int:
        """Push segments into the ring; return their number of transitions."""
        return push()

    def draw(self, count: int) -> tuple[IntArray, Columns]:
        """Return row numbers."""
        # Between optimisation steps this code is never in a cache, and `integers` runs far more of
        # it.
        return self._numbers(self._random.random(count)), {}

    def _numbers(self, random: Array) -> IntArray:
        """Return row numbers, given numbers in [0, 1)."""
        numbers: IntArray = (random * len(self._ring)).astype(np.int64)
        numbers += self._ring.oldest
        return numbers

    def state(self) -> dict[str, Array]:
        """Return the generator's state."""
        return {"random": generator_state(self._random)}

    def prepare(self, state: Params, count: int) -> Callable[[], None]:
        """Check the generator's state; return a function that loads it."""
        return prepare_generator("replay's random", self._random, state["random"])


class RingReplay(ABC):
    """Stores segments in a ring and samples rows by a chooser; subclasses read the samples."""

    def __init__(self, ring: Ring, chooser: Chooser) -> None:
        self._ring = ring
        self._chooser = chooser

    @property
    def schema(self) -> SegmentSchema:
        """Schema of its segments."""
        return self._ring.schema

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self._ring.capacity

    @property
    def once(self) -> bool:
        """Whether each transition is sampled once; here they can be sampled again."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of columns and index when full."""
        return self._ring.nbytes

    def __len__(self) -> int:
        return len(self._ring)

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy segments in, overwriting the oldest; return their number of transitions."""
        return self.stage(columns, rows, go_on)()

    def stage(
        self, columns: Columns, rows: IntArray, pause: Callable[[], object]
    ) -> Callable[[], int]:
        """Copy segments in beside those that can be sampled; see `StagesSegments`."""
        return partial(self._chooser.follow, self._ring.stage(columns, rows, pause))

    def sample(self, batch_size: int) -> Columns:
        """Sample a batch."""
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        numbers, more = self._chooser.draw(batch_size)
        return self._gather(self._ring.rows(numbers)) | dict(more)

    def state(self) -> Params:
        """Return a copy of all that later samples depend on, as named arrays."""
        return collected(self.stream())

    def stream(self, room_bytes: int | None = None) -> ArrayStream:
        """Return the same piece by piece, as of now; see `StreamsState`."""
        others = {"kind": kind_state(self), **self._chooser.state()}
        return self._ring.stream(others, self._chooser.by_row, room_bytes)

    def load_state(self, state: Params) -> None:
        """Load the whole state, or raise `CheckpointError` and change nothing.

        The state of a smaller replay fits, too.
        """
        check_kind(state, self)
        count = self._ring.check(state, {"kind", *self._chooser.state()})
        choose_on = self._chooser.prepare(state, count)
        self._ring.load_state(state)
        choose_on()

    @abstractmethod
    def _gather(self, rows: IntArray) -> dict[str, Array]:
        """Return the samples at these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformReplayConfig(RingConfig):
    """Size of the replay, and how returns are computed."""

    def build(self, schema: SegmentSchema, seed: int) -> UniformReplay:
        """Allocate the ring."""
        return UniformReplay(self, schema, seed)


class UniformReplay(RingReplay):
    """Samples transitions with replacement and equal probabilities."""

    def __init__(self, config: UniformReplayConfig, schema: SegmentSchema, seed: int) -> None:
        ring = Ring(config, schema)
        super().__init__(ring, Uniformly(ring, seed))

    def _gather(self, rows: IntArray) -> dict[str, Array]:
        return self._ring.transitions(rows)
