"""Two ways to count per second: what this process does, and what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat

from asyncrl.core.errors import AsyncRLError

Count = Callable[[], tuple[int, int]]
"""Returns a count, and how many processes contribute to it by now."""

_START_DEADLINE_S = 120.0
_POLL_S = 0.02
_CHANGE_POLL_S = 0.001
_CHUNK_S = 0.01


class Repeating:
    """Work that is done again and again, and says each time how much it was.

    The first measurement warms it up, and finds out how often it can be done in 10 ms: the clock
    is read that often, not between any two times.
    """

    def __init__(
        self,
        work: Callable[[], float],
        *,
        warm_up_seconds: float,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """`settle` waits for what `work` has only ordered, before the clock counts."""
        self._work = work
        self._warm_up_seconds = warm_up_seconds
        self._settle = settle
        self._calls = 0

    def rate(self, seconds: float) -> float:
        """Return what was done per second, measured for so long."""
        if not self._calls:
            self._warm_up()
        work, calls = self._work, self._calls
        done, began = 0.0, time.perf_counter()
        end = began + seconds
        while time.perf_counter() < end:
            for _ in repeat(None, calls):
                done += work()
        self._settle()
        return done / (time.perf_counter() - began)

    def _warm_up(self) -> None:
        self._calls = 1
        warm_until = time.perf_counter() + self._warm_up_seconds
        while True:
            began = time.perf_counter()
            for _ in repeat(None, self._calls):
                self._work()
            now = time.perf_counter()
            if now >= warm_until:
                break
            if now - began < _CHUNK_S / 2:
                self._calls *= 2
        self._settle()


def wait_until_going(count: Count, wanted: int, what: str) -> None:
    """Wait until `wanted` processes contribute to a count."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while (going := count()[1]) < wanted:
        if time.monotonic() > deadline:
            raise AsyncRLError(
                f"only {going} of {wanted} {what} got going in {_START_DEADLINE_S:.0f} s; start "
                "fewer, or look at what keeps the environments from being made"
            )
        time.sleep(_POLL_S)


def growth_rate(count: Count, seconds: float) -> float:
    """Return the growth of a count per second, measured for a little more than `seconds`."""
    started_s, before = _at_next_change(count)
    time.sleep(max(0.0, started_s + seconds - time.monotonic()))
    ended_s, after = _at_next_change(count)
    return (after - before) / (ended_s - started_s)


def _at_next_change(count: Count) -> tuple[float, int]:
    """Wait until the count moves: what arrives in lumps is measured from lump to lump."""
    before = count()[0]
    deadline = time.monotonic() + _START_DEADLINE_S
    while (now := count()[0]) == before:
        if time.monotonic() > deadline:
            raise AsyncRLError(f"nothing was counted in {_START_DEADLINE_S:.0f} s")
        time.sleep(_CHANGE_POLL_S)
    return time.monotonic(), now
