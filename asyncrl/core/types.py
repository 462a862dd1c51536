"""Names of the arrays and counters that pass between modules. Imports nothing of asyncrl."""

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
"""Named arrays with the same leading axis."""

Params = Mapping[str, Array]
"""Named arrays of a model. Receivers must not write to them."""

ActorId = NewType("ActorId", int)
"""The slot of an actor, 0 to N-1. A restarted actor keeps its slot."""

MOST_ACTORS = 4096
"""Maximum number of actors of a run; slots from this number on are those of other processes."""

ModelVersion = NewType("ModelVersion", int)
"""The number of optimisation steps behind a published model."""

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of each array -> its shape and dtype."""


class ArrayStream(Protocol):
    """Arrays at one moment, returned piece by piece while their source changes.

    For arrays too large to copy at once. One thread reads the pieces; any may close.
    """

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the arrays that come in pieces; all have the same number of rows."""
        ...

    def pieces(self) -> Iterator[tuple[int, Params]]:
        """Yield the number of the first row, and rows of all these arrays; each row once."""
        ...

    def rest(self) -> Params:
        """Return the other arrays; call it after the last piece."""
        ...

    def close(self) -> None:
        """Release what is kept for it; no further piece can be read. May be called again."""
        ...


Arrays = Params | ArrayStream
"""What can be saved as a group of a checkpoint."""
