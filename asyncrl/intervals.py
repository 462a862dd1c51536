"""When something that happens at intervals is due: counted in steps, or in seconds.

Reads no clock and does nothing itself: the caller brings the count or the time.
"""

from __future__ import annotations

import math

from asyncrl.core.errors import ConfigError


class Every:
    """Due whenever a count has reached or passed a multiple of `interval`.

    A count may jump over several multiples at once. They are then due once, together, and the
    next one is the next multiple: with an interval of 30, a count that goes 100, 110, 120 is due
    at 100 and at 120.
    """

    def __init__(self, interval: int, *, start: int = 0) -> None:
        """Begin after `start`, where a resumed run left off; an interval of 0 is never due."""
        for name, value in (("interval", interval), ("start", start)):
            if type(value) is not int or value < 0:
                raise ConfigError(f"{name} must be a whole number, 0 or more, got {value!r}")
        self._interval = interval
        self._next: float = self._after(start)

    def due(self, count: int) -> bool:
        """Whether a multiple was reached since it was last due; says so once."""
        if count < self._next:
            return False
        self._next = self._after(count)
        return True

    def _after(self, count: int) -> float:
        if not self._interval:
            return math.inf
        return (count // self._interval + 1) * self._interval


class EverySeconds:
    """Due whenever another `interval_s` seconds have passed since `now`, on a fixed grid.

    Lateness does not add up, and what was missed is due once, together.
    """

    def __init__(self, interval_s: float, now: float) -> None:
        """Begin at `now`; an interval of 0 is never due."""
        if not 0 <= interval_s < math.inf:
            raise ConfigError(
                f"interval_s must be a number of seconds, or 0 for never, got {interval_s!r}"
            )
        self._interval_s = interval_s
        self._start = now
        self._next = now + interval_s if interval_s else math.inf

    def due(self, now: float) -> bool:
        """Whether the next point of the grid has been reached; says so once."""
        if now < self._next:
            return False
        passed = math.floor((now - self._start) / self._interval_s)
        self._next = self._start + (passed + 1) * self._interval_s
        if self._next <= now:  # rounding, where the interval is tiny beside the time
            self._next = now + self._interval_s
        return True
