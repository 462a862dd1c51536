"""Actions drawn at random, to try environments without a policy."""

from __future__ import annotations

import numpy as np

from asyncrl.core.env import BoxSpec, DiscreteSpec
from asyncrl.core.types import Array


def random_actions(
    action: BoxSpec | DiscreteSpec, lead: tuple[int, ...], random: np.random.Generator
) -> Array:
    """Return actions (*lead, *shape) from all of a space, each as likely as any other.

    A quantity without a bound lies within [-1, 1], or within 1 of the bound that it has.
    """
    if isinstance(action, DiscreteSpec):
        return random.integers(action.n, size=lead)
    shape = (*lead, *action.shape)
    if np.dtype(action.dtype).kind != "f":
        low, high = action.low.astype(np.int64), action.high.astype(np.int64)
        return random.integers(low, high, shape, endpoint=True).astype(action.dtype)
    low, high = action.low.astype(np.float64), action.high.astype(np.float64)
    first = np.where(np.isfinite(low), low, np.minimum(-1.0, high - 1.0))
    last = np.where(np.isfinite(high), high, np.maximum(1.0, low + 1.0))
    return random.uniform(first, last, shape).astype(action.dtype)
