"""Checks of what was saved of a replay, and the sentences it is refused with."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, fields

import numpy as np

from asyncrl.checkpoint.array_file import let_go
from asyncrl.core.errors import CheckpointError
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Array, Columns, IntArray, Params

_PIECE_BYTES = 16 << 20

COLUMN = "column/"
"""Before the names of columns in a state."""


def kind_state(replay: object) -> Array:
    """Return the name of a replay's class as text in bytes."""
    return np.frombuffer(type(replay).__name__.encode(), np.uint8).copy()


def kind_of(state: Params) -> str:
    """Return the name of the class that saved a state."""
    if "kind" not in state:
        raise CheckpointError("what was saved holds no replay: it does not say of which kind")
    return state["kind"].tobytes().decode(errors="replace")


def check_kind(state: Params, replay: object) -> None:
    """Refuse the state of another class."""
    if (saved := kind_of(state)) != type(replay).__name__:
        raise CheckpointError(
            f"the saved replay is a {saved}, and this one a {type(replay).__name__}; "
            "asyncrl.replay_buffers.files.load_replay fills one with another's segments"
        )


def check_names(state: Params, expected: Collection[str]) -> None:
    """Refuse a state that lacks an array, or has one that is unknown here."""
    if missing := sorted(set(expected) - set(state)):
        raise CheckpointError(
            f"the saved replay has no {missing[0]}; the columns of its rows are others"
        )
    if unknown := sorted(set(state) - set(expected)):
        raise CheckpointError(
            f"the saved replay has {unknown[0]}, which is unknown here; the columns of its rows "
            "are others"
        )


def schema_state(schema: SegmentSchema) -> Array:
    """Return a schema as text in bytes."""
    return np.frombuffer(json.dumps(asdict(schema)).encode(), np.uint8).copy()


def schema_of(state: Params) -> SegmentSchema:
    """Return the schema of saved segments, or refuse what is none."""
    try:
        plain = json.loads(state["schema"].tobytes())
        columns = [
            ColumnSpec(str(c["name"]), str(c["dtype"]), tuple(map(int, c["shape"])))
            for c in plain["columns"]
        ]
        schema = make_schema(
            columns,
            length=int(plain["length"]),
            lookahead=int(plain["lookahead"]),
            frame_stack=int(plain["frame_stack"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"what was saved holds no replay: no schema, {error!r}") from error
    return schema


def check_columns(state: Params, schema: SegmentSchema) -> int:
    """Refuse segments that are not those of a schema; return how many there are."""
    if (saved := schema_of(state)) != schema:
        differ = [
            f.name for f in fields(schema) if getattr(saved, f.name) != getattr(schema, f.name)
        ]
        raise CheckpointError(
            "the saved replay does not fit this one: its segments differ in "
            + "; ".join(f"{n}: {getattr(saved, n)}, here {getattr(schema, n)}" for n in differ)
        )
    flags = state[f"{COLUMN}flags"]
    n_saved = len(flags) if flags.ndim else 0
    for column in schema.columns:
        found = state[f"{COLUMN}{column.name}"]
        shape = (n_saved, schema.rows, *column.shape)
        if found.shape != shape or found.dtype != column.dtype:
            raise CheckpointError(
                f"the saved replay contradicts itself: its column {column.name} is {found.dtype} "
                f"of shape {found.shape}, expected {column.dtype} of {shape}"
            )
    return n_saved


def push_saved(
    state: Params,
    schema: SegmentSchema,
    push: Callable[[Columns, IntArray], int],
    first: int = 0,
) -> None:
    """Push segments that have been checked, the `first` first, the one before it last.

    A piece at a time, so that a replay that is mapped from its file is never in memory twice.
    """
    columns = {c.name: state[f"{COLUMN}{c.name}"] for c in schema.columns}
    n_saved, piece = len(columns["flags"]), max(1, _PIECE_BYTES // schema.segment_bytes)
    for begin, end in ((first, n_saved), (0, first)):
        for at in range(begin, end, piece):
            part = slice(at, min(at + piece, end))
            push(
                {name: column[part] for name, column in columns.items()},
                np.full(part.stop - part.start, schema.rows),
            )
            let_go(columns.values())


def check_numbers(name: str, value: Array, count: int, dtype: str) -> Array:
    """Return an array of so many numbers that are finite and not negative, or refuse it."""
    plain = value.shape == (count,) and value.dtype == dtype
    if not plain or not np.isfinite(value).all() or (value < 0).any():
        raise CheckpointError(
            f"the saved replay's {name} must be {count} numbers of dtype {dtype}, finite and not "
            f"negative, got {value.dtype} of shape {value.shape}"
        )
    return value


def generator_state(random: np.random.Generator) -> Array:
    """Return what a generator goes on from."""
    return np.frombuffer(json.dumps(random.bit_generator.state).encode(), np.uint8).copy()


def prepare_generator(random: np.random.Generator, state: Array) -> Callable[[], None]:
    """Return what lets a generator go on from a state, or refuse it."""
    try:
        numbers = json.loads(state.tobytes())
        type(random.bit_generator)().state = numbers
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            "the saved replay's random is no state of a "
            f"{type(random.bit_generator).__name__}: {error}"
        ) from error
    return lambda: setattr(random.bit_generator, "state", numbers)
