"""What is stored twice, or left out, shows, whatever the ledger says."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.core.segment import END, ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Columns, IntArray
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.worlds import SCALE

SCHEMA: SegmentSchema = make_schema(
    [
        ColumnSpec("obs", "float32", (3,)),
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("model_version", "int32"),
    ],
    length=4,
    lookahead=1,
)


def segment(incarnation: int, first: int, *, filled: int = 5) -> tuple[Columns, IntArray]:
    """Return one segment of one environment; if it is short, its last row is an end."""
    steps = np.arange(first, first + 5)
    obs = np.stack([np.full(5, incarnation), np.zeros(5), steps], axis=1).astype(np.float32) * SCALE
    flags = np.zeros(5, np.uint8)
    if filled < 5:
        flags[filled - 1] = END
    columns = {
        "obs": obs[None],
        "action": np.zeros((1, 5), np.int64),
        "reward": np.zeros((1, 5), np.float32),
        "flags": flags[None],
        "model_version": np.full((1, 5), 7, np.int32),
    }
    return columns, np.array([filled])


def test_streams_without_a_gap_are_well() -> None:
    audit = Audit(keeps_times=True)
    for columns, rows in (segment(1, 0), segment(2, 0), segment(1, 4), segment(1, 8, filled=3)):
        audit.look(columns, rows, SCHEMA)
    assert (audit.twice, audit.gaps, audit.unmodelled) == (0, 0, 0)
    assert (audit.stored(1), audit.stored(2), audit.total()) == (10, 4, 14)
    assert set(audit.first_at) == {1, 2}
    assert audit.versions == [7] * 4


@pytest.mark.parametrize(("first", "twice", "gaps"), [(3, 1, 0), (0, 4, 0), (5, 0, 1), (4, 0, 0)])
def test_what_comes_twice_or_not_at_all_is_counted(first: int, twice: int, gaps: int) -> None:
    audit = Audit()
    audit.look(*segment(1, 0), SCHEMA)
    audit.look(*segment(1, first), SCHEMA)
    assert (audit.twice, audit.gaps) == (twice, gaps)
