from __future__ import annotations

import numpy as np
import pytest

from asyncrl.tools.report import statistics

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("n", [1, 3, 5, 11])
def test_centre_is_the_interquartile_mean_of_four_or_more(n: int) -> None:
    values = RANDOM.normal(size=(n, 3))
    cut = n // 4 if n >= 4 else 0
    expected = np.sort(values, axis=0)[cut : n - cut].mean(axis=0)
    np.testing.assert_allclose(statistics.centre(values), expected)
    assert statistics.centre_name(n) == ("interquartile mean" if n >= 4 else "mean")


def test_interval_is_that_of_the_percentile_bootstrap() -> None:
    values = np.random.default_rng(5).normal(size=(10, 2))
    low, high = statistics.interval(values)
    of_mean = statistics.interval(values, of=lambda draws: draws.mean(axis=0))
    half = 1.96 * values.std(axis=0) / 10**0.5  # what a bootstrapped mean tends to
    for found, sign in zip(of_mean, (-1, 1), strict=True):
        np.testing.assert_allclose(found, values.mean(axis=0) + sign * half, atol=0.15)
    assert np.all(low < statistics.centre(values))
    assert np.all(high > statistics.centre(values))


def test_improvement_counts_pairs_and_half_of_the_ties() -> None:
    ours, others = np.array([1.0, 2.0]), np.array([1.0, 0.0])
    assert statistics.improvement(ours, others) == (0.5 + 1 + 1 + 1) / 4
    assert statistics.improvement(others, ours) == 1 - statistics.improvement(ours, others)


def test_curves_are_compared_where_all_of_them_are() -> None:
    steps, values = statistics.on_common_steps(
        [([0.0, 10.0, 20.0], [1.0, 2.0, 3.0]), ([5.0, 15.0, 30.0], [7.0, 8.0, 9.0])]
    )
    assert steps.tolist() == [5.0, 10.0, 15.0, 20.0]
    assert values.tolist() == [[1.5, 2.0, 2.5, 3.0], [7.0, 7.5, 8.0, 8.0 + 1 / 3]]
