"""Random observation spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from hypothesis import strategies as st

_DTYPES = ["uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]
_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def array_spaces() -> st.SearchStrategy[Space[Any]]:
    """Draw spaces whose observations are one array, or one number."""
    boxes = st.builds(lambda shape, dtype: Box(0, 100, shape, np.dtype(dtype)), _SHAPES, dtypes())
    counts = st.lists(st.integers(1, 5), min_size=1, max_size=3)
    return st.one_of(
        boxes,
        st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
        st.builds(MultiBinary, st.integers(1, 5)),
        counts.map(MultiDiscrete),
    )


def dtypes() -> st.SearchStrategy[str]:
    """Draw dtypes of boxes."""
    return st.sampled_from(_DTYPES)


def nested_spaces() -> st.SearchStrategy[Space[Any]]:
    """Draw `Dict` and `Tuple` spaces, some within others."""

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keys = st.sampled_from(["a", "b", "camera", "x y"])
        return st.one_of(
            st.dictionaries(keys, inner, min_size=1, max_size=3).map(Dict),
            st.lists(inner, min_size=1, max_size=3).map(lambda members: Tuple(tuple(members))),
        )

    return around(st.recursive(array_spaces(), around, max_leaves=5))
