"""Names for the arrays and counters that pass between modules. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NewType

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
