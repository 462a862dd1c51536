"""Names for the arrays and counters that pass between modules. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NewType, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""Any array; the leading axis counts rows, environments or segments, as its name says."""

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

Columns = Mapping[str, Array]
"""Named arrays with one and the same leading axis."""

Params = Mapping[str, Array]
"""A model's named arrays. Whoever receives one must not write into it."""

ActorId = NewType("ActorId", int)
"""The slot of an actor, 0 to N-1. A restarted actor keeps its slot."""

ModelVersion = NewType("ModelVersion", int)
"""The number of optimisation steps behind a published model."""

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of each array -> its shape and dtype."""


class ArrayStream(Protocol):
    """Arrays as they are now, handed over piece by piece while what they are copied from changes.

    For what is too large to be copied whole. One thread takes the pieces; any may close.
    """

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the arrays that come in pieces: all have as many rows."""
        ...

    def pieces(self) -> Iterator[tuple[int, Params]]:
        """Yield rows of all these arrays, and the number of the first; each row once."""
        ...

    def rest(self) -> Params:
        """Return the other arrays, after the last piece."""
        ...

    def close(self) -> None:
        """Let go of what is kept for it; no piece can be had any more. May be called again."""
        ...


Arrays = Params | ArrayStream
"""What can be saved as a group."""
