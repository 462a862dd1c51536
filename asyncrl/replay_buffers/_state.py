"""Checks of what was saved of a replay, and the sentences it is refused with."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

import numpy as np

from asyncrl.errors import CheckpointError
from asyncrl.segment import SegmentSchema
from asyncrl.types import Array, Params

__all__ = [
    "COLUMN",
    "check_columns",
    "check_names",
    "check_numbers",
    "generator_state",
    "prepare_generator",
]

COLUMN = "column/"
"""Before the names of columns in a state."""


def check_names(state: Params, expected: Collection[str]) -> None:
    """Refuse a state that lacks an array, or has one that is unknown here."""
    if missing := sorted(set(expected) - set(state)):
        raise CheckpointError(
            f"the saved replay has no {missing[0]}; it is that of another kind of replay, or of "
            "other columns"
        )
    if unknown := sorted(set(state) - set(expected)):
        raise CheckpointError(
            f"the saved replay has {unknown[0]}, which is unknown here; it is that of another kind "
            "of replay, or of other columns"
        )


def check_columns(state: Params, schema: SegmentSchema) -> int:
    """Refuse segments that are not those of a schema; return how many there are."""
    flags = state[f"{COLUMN}flags"]
    n_saved = len(flags) if flags.ndim else 0
    for column in schema.columns:
        found = state[f"{COLUMN}{column.name}"]
        shape = (n_saved, schema.rows, *column.shape)
        if found.shape != shape or found.dtype != column.dtype:
            raise CheckpointError(
                f"the saved replay does not fit this one: its column {column.name} is "
                f"{found.dtype} of shape {found.shape}, expected {column.dtype} of {shape}; "
                "environment, agent, segments and look-ahead must be those of the run that saved it"
            )
    return n_saved


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
