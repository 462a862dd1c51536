"""Derives separate, reproducible random streams for every part of a run, and saves their states.

Seeds nothing globally.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array


class Role(IntEnum):
    """What a random stream is used for; streams of different roles are independent."""

    LEARNER = 0
    POLICY = 1
    ENVIRONMENT = 2
    EVALUATION = 3
    REPLAY = 4
    GLOBALS = 5


def derive_seed(seed: int, role: Role, *which: int) -> int:
    """Return a 31-bit seed for one part of a run; equal arguments give equal seeds."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(int(role), *which))
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def generator_state(random: np.random.Generator) -> Array:
    """Return the state of a random generator as JSON in bytes."""
    return np.frombuffer(json.dumps(random.bit_generator.state).encode(), np.uint8).copy()


def prepare_generator(name: str, random: np.random.Generator, state: Array) -> Callable[[], None]:
    """Check a generator's state, named in errors; return a function that sets it."""
    try:
        numbers = json.loads(state.tobytes())
        type(random.bit_generator)().state = numbers
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"the saved {name} is not a state of a {type(random.bit_generator).__name__}: {error}"
        ) from error
    return lambda: setattr(random.bit_generator, "state", numbers)
