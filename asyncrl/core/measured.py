"""Choices that this process has made by measuring. Two processes may choose differently.

A run whose order is recorded keeps them, and `assume` sets them before it is replayed. Does not
know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_choices: dict[str, bool] = {}


def measured(name: str, measure: Callable[[], bool]) -> bool:
    """Return the choice of that name; measure it if this process has not done so yet."""
    if name not in _choices:
        _choices[name] = measure()
    return _choices[name]


def choices() -> Mapping[str, bool]:
    """Return all choices made so far."""
    return dict(_choices)


def assume(made: Mapping[str, bool]) -> None:
    """Make these choices without measuring."""
    _choices.update(made)
