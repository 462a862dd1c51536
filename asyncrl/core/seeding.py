"""Derives separate, reproducible random streams for every part of a run. Seeds nothing globally."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


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
