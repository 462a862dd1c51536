"""What several runs say together: means that outliers do not move, and how sure they are.

Rewards of a few seeds are rarely distributed normally, so intervals are bootstrapped: the runs are
drawn again with replacement, and the interval holds the middle of what those draws give.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FEWEST_FOR_QUARTILES = 4
_DRAWS = 1000
_LEVEL = 0.95


def centre(values: Floats) -> Floats:
    """Return the interquartile mean over the first axis; the mean of fewer than four."""
    cut = len(values) // 4 if len(values) >= _FEWEST_FOR_QUARTILES else 0
    kept: Floats = np.sort(values, axis=0)[cut : len(values) - cut]
    return np.asarray(kept.mean(axis=0), np.float64)


def centre_name(n: int) -> str:
    """Return what `centre` computes of n values."""
    return "interquartile mean" if n >= _FEWEST_FOR_QUARTILES else "mean"


def interval(
    values: Floats, of: Callable[[Floats], Floats] = centre, *, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the bounds of the bootstrapped 95 % interval of a statistic over the first axis."""
    random = np.random.default_rng(seed)
    draws = np.stack(
        [of(values[random.integers(len(values), size=len(values))]) for _ in range(_DRAWS)]
    )
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def improvement(ours: Floats, others: Floats) -> float:
    """Return how probably a run of ours scores higher than one of the others; ties count half."""
    difference = ours[:, None] - others[None, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def on_common_steps(
    curves: list[tuple[list[float], list[float]]], most_points: int = 200
) -> tuple[Floats, Floats]:
    """Return positions that all curves cover, and the value of each curve at each position.

    Between its points a curve is linear: steps at other positions in each run would be cliffs of
    their mean. Without a common stretch there are no positions.
    """
    begin = max(xs[0] for xs, _ in curves)
    end = min(xs[-1] for xs, _ in curves)
    inside = sorted({x for xs, _ in curves for x in xs if begin <= x <= end})
    if len(inside) > most_points:
        inside = list(np.linspace(begin, end, most_points))
    at = np.asarray(inside, np.float64)
    return at, np.stack([np.interp(at, xs, ys) for xs, ys in curves])
