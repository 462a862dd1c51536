"""Checks of single settings of an agent, and the sentences they are refused with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.errors import ConfigError


def check_probability(name: str, value: float) -> None:
    """Refuse what does not lie in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"agent.{name} must lie in [0, 1], got {value}")


def check_positive(name: str, value: float) -> None:
    """Refuse 0, negative numbers, infinity and NaN."""
    if not 0.0 < value < math.inf:
        raise ConfigError(f"agent.{name} must be positive, got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse negative numbers, infinity and NaN."""
    if not 0.0 <= value < math.inf:
        raise ConfigError(f"agent.{name} must be 0 or more, got {value}")


def check_widths(name: str, widths: Sequence[int]) -> None:
    """Refuse layers without a unit."""
    if any(units < 1 for units in widths):
        raise ConfigError(f"agent.{name} needs at least 1 unit a layer, got {widths}")
