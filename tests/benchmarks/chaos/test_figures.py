"""Numbers of which tables are made."""

from __future__ import annotations

import math

import pytest

from benchmarks.chaos.figures import median, percentile, slope_per_h


def test_median_and_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert median(values) == 50.5
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([3.0], 50) == 3
    assert math.isnan(median([]))
    assert math.isnan(percentile([], 50))


def test_slope_is_that_of_an_hour() -> None:
    assert slope_per_h([0.0, 10.0, 20.0], [5.0, 6.0, 7.0]) == pytest.approx(360)
    assert slope_per_h([1.0], [5.0]) == 0
