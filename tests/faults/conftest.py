"""Faults hit processes as users have them."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh_helpers: None) -> None:
    """Start them anew, not from the warm process."""
