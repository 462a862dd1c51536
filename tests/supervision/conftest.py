"""The launcher starts its helper as users have it."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh_helpers: None) -> None:
    """Start new ones, not from the warm process."""
