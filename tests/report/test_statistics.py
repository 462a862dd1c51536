from __future__ import annotations

import numpy as np
import pytest

from asyncrl.report import statistics

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11])
def test_centre_is_the_interquartile_mean_of_four_or_more(n: int) -> None:
    values = RANDOM.normal(size=(n, 3))
    stats = pytest.importorskip("scipy.stats")
    expected = stats.trim_mean(values, 0.25) if n >= 4 else values.mean(axis=0)
    np.testing.assert_allclose(statistics.centre(values), expected)
    assert statistics.centre_name(n) == ("interquartile mean" if n >= 4 else "mean")


def test_interval_is_that_of_the_percentile_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = RANDOM.normal(size=(10, 2))
    low, high = statistics.interval(values)
    other = stats.bootstrap(
        (values,), lambda x, axis: np.moveaxis(x, axis, 0).mean(0), axis=0, method="percentile"
    )
    narrow, _ = statistics.interval(values, of=lambda draws: draws.mean(axis=0))
    np.testing.assert_allclose(narrow, other.confidence_interval.low, atol=0.1)
    assert np.all(low < statistics.centre(values))
    assert np.all(high > statistics.centre(values))


def test_interval_is_the_same_each_time() -> None:
    values = RANDOM.normal(size=6)
    assert statistics.interval(values) == statistics.interval(values)


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


def test_curves_without_a_common_stretch_are_not_compared() -> None:
    steps, _ = statistics.on_common_steps([([0.0, 1.0], [0.0, 0.0]), ([2.0, 3.0], [0.0, 0.0])])
    assert not len(steps)


def test_long_curves_are_compared_at_equal_distances() -> None:
    xs = [float(x) for x in range(1000)]
    steps, values = statistics.on_common_steps([(xs, xs)], most_points=11)
    assert len(steps) == 11
    np.testing.assert_allclose(values[0], steps)
