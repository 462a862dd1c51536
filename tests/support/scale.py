"""How much of it: `pytest --scale full` draws as many examples as a test can use."""

from __future__ import annotations

full = False
"""Set from the command line before tests are loaded."""


def examples(most: int, usual: int = 40) -> int:
    """Return how many examples to draw, where up to `most` have found something once."""
    return most if full else min(most, usual)
