"""What several test files use."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Return as soon as `condition` holds; raise with `what` was waited for if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}")
        time.sleep(0.01)
