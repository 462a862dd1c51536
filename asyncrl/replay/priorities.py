"""Priorities: rows are sampled in proportion to their TD errors.

Knows the numbers that a `Ring` assigns to rows, and nothing of their content.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from asyncrl.core.declared import Count, Positive, Share
from asyncrl.core.errors import CheckpointError, NonFiniteModel
from asyncrl.core.replay_buffer import LARGEST_WEIGHT
from asyncrl.core.seeding import generator_state, prepare_generator
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.types import Array, Columns, IntArray, Params
from asyncrl.replay.files import check_numbers
from asyncrl.replay.ring import Ring
from asyncrl.replay.ring_config import RingConfig

Floats = npt.NDArray[np.float64]

_TOP = 512
"""Nodes of the lowest level that sums start from; the levels above it are left out. 512 was fastest
for a million leaves."""


class Heap:
    """Leaves and the nodes above them; each node combines two below it."""

    def __init__(self, n_leaves: int, combine: np.ufunc, empty: float) -> None:
        """Begin with leaves of value `empty`, the neutral element of `combine`."""
        self._first_leaf = first_leaf(n_leaves)
        self._combine = combine
        # The system allocates zeroed memory only where it is written.
        shape = 2 * self._first_leaf
        self._nodes: Floats = np.full(shape, empty) if empty else np.zeros(shape)
        self.top = self._nodes[min(_TOP, self._first_leaf) : 2 * min(_TOP, self._first_leaf)]
        """The highest level of nodes that is kept up to date."""

    @staticmethod
    def nbytes(n_leaves: int) -> int:
        """Return the bytes of a heap with this number of leaves."""
        return 2 * first_leaf(n_leaves) * np.dtype(np.float64).itemsize

    @property
    def leaves(self) -> Floats:
        """The values of all leaves, including those that pad their number to a power of 2."""
        return self._nodes[self._first_leaf :]

    def set(self, leaves: IntArray, values: Array) -> None:
        """Set leaves. If a leaf occurs more than once, its last value counts."""
        if not len(leaves):
            return
        nodes = self._nodes
        at = leaves + self._first_leaf
        nodes[at] = values
        combined = nodes.take(at)
        while at[0] >= 2 * len(self.top):
            combined = self._combine(combined, nodes.take(at ^ 1))
            at >>= 1
            nodes[at] = combined

    def take(self, leaves: IntArray) -> Floats:
        """Return the values of leaves."""
        return self._nodes.take(leaves + self._first_leaf)


class SumTree(Heap):
    """Finds the leaf at a position in the cumulative sum of all leaves."""

    def __init__(self, n_leaves: int) -> None:
        super().__init__(n_leaves, np.add, 0.0)

    def find(self, fractions: Floats) -> IntArray:
        """Return the leaf at each fraction, in [0, 1), of the sum; ascending fractions are faster.

        Sums are rounded, so a fraction at the edge of a leaf may find a neighbour with value 0.
        """
        nodes = self._nodes
        sums = self.top.cumsum()
        rest = fractions * sums[-1]
        at: IntArray = sums[:-1].searchsorted(rest, side="right")
        rest -= sums.take(at) - self.top.take(at)
        at += len(self.top)
        while at[0] < self._first_leaf:
            at += at
            left = nodes.take(at)
            goes_right = rest >= left
            left *= goes_right
            rest -= left
            at += goes_right
        at -= self._first_leaf
        return at


def first_leaf(n_leaves: int) -> int:
    """Return the index of the first leaf: a power of 2, so that all leaves have the same depth."""
    return 1 << max(n_leaves - 1, 0).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritiesConfig(RingConfig):
    """How TD errors become probabilities, and how importance weights correct the bias."""

    alpha: Share = 0.6
    """Exponent of the priorities: 0 samples uniformly, 1 in proportion to TD errors."""

    beta: Share = 0.4
    """Initial exponent of the importance weights: 0 corrects nothing, 1 fully."""

    beta_end: Share = 1.0
    """Final exponent of the importance weights."""

    beta_samples: Count = 25_600_000
    """Sampled transitions over which beta rises from `beta` to `beta_end`. The default is 100 000
    batches of 256."""

    normaliser: Literal["batch", "buffer"] = "batch"
    """What importance weights are divided by: the maximum of the `batch`, or the maximum of all
    rows in the replay `buffer`."""

    epsilon: Positive = 1e-6
    """Added to TD errors, so that every row can be sampled."""

    def index_bytes(self, schema: SegmentSchema) -> int:
        """Return the bytes of the index, priorities included."""
        n_trees = 2 if self.normaliser == "buffer" else 1
        n_leaves = self.slots(schema) * schema.length
        return RingConfig.index_bytes(self, schema) + n_trees * Heap.nbytes(n_leaves)


class Priorities:
    """The priority of every row in a ring that can be sampled."""

    by_row: ClassVar[tuple[str, ...]] = ("priorities",)

    def __init__(
        self,
        config: PrioritiesConfig,
        ring: Ring,
        seed: int,
        td_error_of: Callable[[IntArray], Array | None] = lambda _: None,
    ) -> None:
        """Follow a ring.

        `td_error_of` returns initial TD errors of new rows, given their numbers: NaN for a row, or
        None for all of them, if unknown. Those rows get the highest priority so far.
        """
        self._config = config
        self._ring = ring
        self._td_error_of = td_error_of
        self._random = np.random.default_rng(seed)
        self._sums = SumTree(ring.capacity)
        self._minima = (
            Heap(ring.capacity, np.minimum, np.inf) if config.normaliser == "buffer" else None
        )
        self._highest = 1.0
        self._samples = 0
        self._order: IntArray = np.arange(0)

    @property
    def beta(self) -> float:
        """Current exponent of the importance weights."""
        config = self._config
        done = min(1.0, self._samples / config.beta_samples)
        return config.beta + (config.beta_end - config.beta) * done

    def resume_at(self, samples: int) -> None:
        """Continue with the beta that follows this number of samples."""
        self._samples = samples

    def follow(self, push: Callable[[], int]) -> int:
        """Push segments into the ring and follow it; return their number of transitions."""
        ring = self._ring
        oldest, first = ring.oldest, ring.newest
        transitions = push()
        gone = np.arange(max(oldest, ring.oldest - ring.capacity), ring.oldest) % ring.capacity
        self._set(gone, np.zeros(len(gone)), np.inf)
        entered = np.arange(max(first, ring.oldest), ring.newest)
        self._set(entered % ring.capacity, self._first(len(entered), self._td_error_of(entered)))
        return transitions

    def update(self, numbers: IntArray, td_error: Array) -> None:
        """Set priorities. Rows that have been overwritten since they were sampled are ignored."""
        priorities = self._priorities(td_error)
        highest = float(priorities.max(initial=0.0))
        if not highest < np.inf:  # also true if it is NaN
            raise NonFiniteModel("a TD error is NaN or infinite; priorities were not changed")
        self._highest = max(self._highest, highest)
        if numbers.min(initial=self._ring.newest) < self._ring.oldest:
            still_there = numbers >= self._ring.oldest
            numbers, priorities = numbers[still_there], priorities[still_there]
        self._set(numbers % self._ring.capacity, priorities)

    def draw(self, count: int) -> tuple[IntArray, Columns]:
        """Return row numbers, and columns: the numbers, and the rows' importance weights.

        Sampling is stratified: one row from each of `count` equal parts of the sum. It has the same
        expectation as independent samples and less variance. The order is shuffled, so that each
        piece of a batch also covers the whole sum.
        """
        if len(self._order) != count:
            self._order = _spread(count)
        leaves = self._find(count).take(self._order)
        priorities = self._sums.take(leaves)
        while not (lowest := float(priorities.min(initial=np.inf))):
            empty = priorities == 0.0  # rounding at the edge of a leaf
            leaves[empty] = self._find(int(empty.sum()))
            priorities = self._sums.take(leaves)
        if self._minima is not None:
            lowest = float(self._minima.top.min())
        beta = self.beta
        weights = (lowest / priorities) ** beta
        # Several learners compare it: 1 / P_lowest, to the power of beta.
        largest = (float(self._sums.top.sum()) / lowest) ** beta
        self._samples += count
        oldest = self._ring.oldest
        numbers = (leaves - oldest) % self._ring.capacity + oldest
        columns: Columns = {
            "weight": weights.astype(np.float32),
            LARGEST_WEIGHT: np.full(count, largest, np.float32),
            "index": numbers,
        }
        return numbers, columns

    def state(self) -> dict[str, Array]:
        """Return a copy of what later samples depend on, except the ring's content."""
        ring = self._ring
        first, leaves = ring.oldest % ring.capacity, self._sums.leaves
        after_end = max(0, first + len(ring) - ring.capacity)
        parts = leaves[first : first + len(ring) - after_end], leaves[:after_end]
        return {
            "priorities": np.concatenate(parts),  # index arrays would take far longer
            "highest": np.array([self._highest]),
            "samples": np.array([self._samples]),
            "random": generator_state(self._random),
        }

    def prepare(self, state: Params, count: int) -> Callable[[], None]:
        """Check a state for a ring of `count` rows; return what loads it into the filled ring."""
        priorities = check_numbers("priorities", state["priorities"], count, "float64")
        if not priorities.all():
            raise CheckpointError("a saved priority is 0; its row could never be sampled")
        highest = check_numbers("highest", state["highest"], 1, "float64")
        samples = check_numbers("samples", state["samples"], 1, "int64")
        draw_on = prepare_generator("replay's random", self._random, state["random"])

        def take() -> None:
            ring = self._ring
            everywhere = np.arange(ring.capacity)
            self._set(everywhere, np.zeros(ring.capacity), np.inf)
            self._set(np.arange(ring.oldest, ring.newest) % ring.capacity, priorities)
            self._highest, self._samples = float(highest[0]), int(samples[0])
            draw_on()

        return take

    def _first(self, count: int, td_error: Array | None) -> Array:
        if td_error is None:
            return np.full(count, self._highest)
        known = np.isfinite(td_error)
        priorities = np.where(known, self._priorities(np.where(known, td_error, 0.0)), 0.0)
        self._highest = max(self._highest, float(priorities.max(initial=0.0)))
        return np.where(known, priorities, self._highest)

    def _find(self, count: int) -> IntArray:
        fractions = self._random.random(count)
        fractions += np.arange(count)
        fractions *= 1.0 / count
        return self._sums.find(fractions)

    def _priorities(self, td_error: Array) -> Array:
        magnitude = np.abs(td_error, dtype=np.float64)
        magnitude += self._config.epsilon
        return magnitude**self._config.alpha

    def _set(self, leaves: IntArray, values: Array, minima: float | None = None) -> None:
        self._sums.set(leaves, values)
        if self._minima is not None:
            self._minima.set(leaves, values if minima is None else np.full(len(leaves), minima))


def _spread(count: int) -> IntArray:
    """Return 0 to count - 1 in steps of about 0.618 * count, so that any run of them is even."""
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, count) > 1:
        step += 1
    return np.arange(count) * step % max(count, 1)
