"""Segments have one extent and one name on both sides, and columns that can be stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import (
    ColumnSpec,
    SegmentSchema,
    make_schema,
)
from tests.support.scale import examples

OBS, FLAGS = ColumnSpec("obs", "uint8", (84, 84)), ColumnSpec("flags", "uint8")

columns = st.builds(
    ColumnSpec,
    st.text(max_size=5),
    st.sampled_from(["float32", "uint8", "int64"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
schemas = st.builds(
    SegmentSchema,
    columns=st.lists(columns, max_size=3).map(tuple),
    length=st.integers(1, 12),
    lookahead=st.integers(1, 12),
)


def test_stacks_of_frames_make_a_segment_look_back() -> None:
    schema = make_schema([OBS, FLAGS], length=16, lookahead=3, frame_stack=4)
    assert (schema.lookback, schema.rows) == (3, 22)
    assert schema.sampled == slice(3, 19)
    assert schema.hash() != make_schema([OBS, FLAGS], length=16, lookahead=3).hash()


@given(schemas, schemas)
@settings(max_examples=examples(300, usual=20))
def test_hash_distinguishes_schemas(a: SegmentSchema, b: SegmentSchema) -> None:
    assert (a.hash() == b.hash()) is (a == b)
    assert replace(a).hash() == a.hash()


@pytest.mark.parametrize(
    "change",
    [
        {"columns": (FLAGS, OBS)},
        {"columns": (OBS, replace(FLAGS, dtype="int8"))},
    ],
)
def test_hash_sees_every_change(change: dict[str, object]) -> None:
    schema = make_schema([OBS, FLAGS], length=4, lookahead=1)
    assert replace(schema, **change).hash() != schema.hash()  # type: ignore[arg-type]


def test_columns_must_differ() -> None:
    with pytest.raises(ConfigError, match=r"must differ, got \['obs', 'flags', 'obs'\]"):
        make_schema([OBS, FLAGS, OBS], length=4, lookahead=1)


@pytest.mark.parametrize(("kept", "missing"), [(OBS, "flags"), (FLAGS, "obs")])
def test_columns_that_every_segment_needs(kept: ColumnSpec, missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"needs the columns \['{missing}'\]"):
        make_schema([kept], length=4, lookahead=1)


def test_objects_cannot_be_stored() -> None:
    with pytest.raises(ConfigError, match="'info': dtype object cannot be stored"):
        make_schema([OBS, FLAGS, ColumnSpec("info", "object")], length=4, lookahead=1)
