"""Segments filled by hand, of any columns."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Array, IntArray

KINDS = st.sampled_from(["", "", "", "T", "C", "TC"])


@st.composite
def streams(draw: st.DrawFn, max_steps: int = 25, max_envs: int = 3) -> list[list[str]]:
    """Draw how each step of some environments ends, as `tests.support.streams.play` takes it."""
    n_envs = draw(st.integers(1, max_envs))
    n_steps = draw(st.integers(1, max_steps))
    return [draw(st.lists(KINDS, min_size=n_steps, max_size=n_steps)) for _ in range(n_envs)]


def with_columns(
    *names: str, length: int, lookahead: int, frame: tuple[int, ...] = ()
) -> SegmentSchema:
    """Return a schema with these float32 columns beside the usual ones."""
    columns = [
        ColumnSpec("obs", "float32", frame),
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        *(ColumnSpec(name, "float32") for name in names),
    ]
    return make_schema(columns, length=length, lookahead=lookahead)


def segment(schema: SegmentSchema, **values: list[float]) -> tuple[dict[str, Array], IntArray]:
    """Return one whole segment with these values in its rows, and zeros elsewhere."""
    columns = {c.name: np.zeros((1, schema.rows, *c.shape), c.dtype) for c in schema.columns}
    for name, value in values.items():
        columns[name][0, : len(value)] = value
    return columns, np.array([schema.rows])
