"""Segments have one extent and one name on both sides, and columns that can be stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
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


def schema_of(*columns: ColumnSpec) -> SegmentSchema:
    return SegmentSchema(columns=columns, length=4, lookahead=1)


def test_stacks_of_frames_make_a_segment_look_back() -> None:
    schema = make_schema([OBS, FLAGS], length=16, lookahead=3, frame_stack=4)
    assert (schema.lookback, schema.rows) == (3, 22)
    assert schema.sampled == slice(3, 19)
    assert schema.hash() != make_schema([OBS, FLAGS], length=16, lookahead=3).hash()


@given(schemas, schemas)
@settings(max_examples=examples(300, usual=20))
@example(schema_of(OBS, FLAGS), schema_of(FLAGS, OBS))
@example(schema_of(OBS), schema_of(replace(OBS, dtype="int8")))
def test_hash_distinguishes_schemas(a: SegmentSchema, b: SegmentSchema) -> None:
    assert (a.hash() == b.hash()) is (a == b)
    assert replace(a).hash() == a.hash()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([OBS], r"needs the columns \['flags'\]"),
        ([FLAGS], r"needs the columns \['obs'\]"),
        ([OBS, FLAGS, OBS], r"must differ, got \['obs', 'flags', 'obs'\]"),
        ([OBS, FLAGS, ColumnSpec("info", "object")], "'info': dtype object cannot be stored"),
    ],
)
def test_columns_that_make_no_segment_are_refused(columns: list[ColumnSpec], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_schema(columns, length=4, lookahead=1)
