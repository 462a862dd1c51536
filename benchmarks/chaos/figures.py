"""Numbers of which tables are made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Return the median; NaN of none."""
    return statistics.median(values) if values else math.nan


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed; NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def slope_per_h(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return by how much values grow in an hour, as a line through all of them has it."""
    if len(times_s) < 2:
        return 0.0
    return 3600 * statistics.linear_regression(times_s, values).slope
