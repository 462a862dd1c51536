"""Binary trees in arrays, whose nodes combine their two children; many leaves change at once.

Numpy does one level of the tree at a time, for all leaves of a batch together. That pays only
while levels are long: the uppermost few are left out, and their place takes one pass over the
nodes below them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncrl.core.types import Array, IntArray

Floats = npt.NDArray[np.float64]

_TOP = 512
"""Nodes below the levels that are left out; measured best for a million leaves."""


class Heap:
    """Leaves, and above them the result of combining them two by two."""

    def __init__(self, n_leaves: int, combine: np.ufunc, empty: float) -> None:
        """Begin with leaves that hold `empty`, which must leave whatever it is combined with."""
        self._first_leaf = first_leaf(n_leaves)
        self._combine = combine
        # Of zeros, memory is taken only where something is written.
        shape = 2 * self._first_leaf
        self._nodes: Floats = np.full(shape, empty) if empty else np.zeros(shape)
        self.top = self._nodes[min(_TOP, self._first_leaf) : 2 * min(_TOP, self._first_leaf)]
        """The uppermost nodes that are kept up to date."""

    @staticmethod
    def nbytes(n_leaves: int) -> int:
        """Return the bytes of one with so many leaves."""
        return 2 * first_leaf(n_leaves) * np.dtype(np.float64).itemsize

    @property
    def leaves(self) -> Floats:
        """The values of all leaves, and of those that make their number a power of 2."""
        return self._nodes[self._first_leaf :]

    def set(self, leaves: IntArray, values: Array) -> None:
        """Change leaves; of one that is named more than once the last value counts."""
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
    """Finds the leaf in whose share of the sum of all leaves a number falls."""

    def __init__(self, n_leaves: int) -> None:
        super().__init__(n_leaves, np.add, 0.0)

    def find(self, fractions: Floats) -> IntArray:
        """Return the leaf at each fraction, in [0, 1), of the sum; ascending ones are faster.

        Sums are rounded, so that a fraction at the very edge may find a leaf of 0.
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
    """Return the index of the first leaf: a power of 2, so that all leaves are equally deep."""
    return 1 << max(n_leaves - 1, 0).bit_length()
