"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from asyncrl.recorders.run_state import count, duration, measure


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.54, "2.5"),
        (812.4, "812"),
        (999.6, "1.0 k"),
        (999_600, "1.00 M"),
        (1_254_000, "1.25 M"),
        (-12_345, "-12.3 k"),
        (math.nan, "nan"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (132.43, "132.4"),
        (0.012345, "0.0123"),
        (1.2e-5, "1.2e-05"),
        (math.nan, "nan"),
    ],
)
def test_measure(value: float, text: str) -> None:
    assert measure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (99.4, "99 s"),
        (99.6, "1 m 40 s"),
        (3599.6, "1 h 00 m"),
        (12_000, "3 h 20 m"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
