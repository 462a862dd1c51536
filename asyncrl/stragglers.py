"""Finds actors that are much slower than the others. Looks at no clock and ends nobody."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from asyncrl.core.messages import Peer

_FEWEST = 3
"""Of two, nobody could say which one is slow and which one fast."""


class Slow(NamedTuple):
    """How slow an actor was, beside how fast the one in the middle was."""

    steps_per_s: float
    median_steps_per_s: float


@dataclass(slots=True)
class Stragglers:
    """Compares lives of actors over one window of time after the other."""

    min_share: float
    """Of the median actor's steps, for an actor not to count as slow."""

    window_s: float
    _since_s: float = float("-inf")
    _steps: dict[Peer, int] = field(default_factory=dict)
    _looked_s: float = float("-inf")
    _waited_s: dict[Peer, float] = field(default_factory=dict)

    def look(
        self, now_s: float, steps: Mapping[Peer, int], waiting: Collection[Peer] = ()
    ) -> dict[Peer, Slow]:
        """Return who has been slow in the window that is over, if one is; look often.

        `steps` are those that each life has made so far; not what has become of them, since whole
        trajectories are held back until they are over. A life that had made none when the window
        began is not judged by it: it may have been starting. Of the time in which it was seen to be
        `waiting`, for the learner or until it may make its environments anew, no steps are wanted,
        and the one that may be under way behind a wait counts as made.
        """
        for peer in waiting:
            since_s = max(self._looked_s, self._since_s)
            self._waited_s[peer] = self._waited_s.get(peer, 0.0) + now_s - since_s
        self._looked_s = now_s
        passed_s = now_s - self._since_s
        if passed_s < self.window_s:
            return {}
        before, self._since_s, self._steps = self._steps, now_s, dict(steps)
        waited_s, self._waited_s = self._waited_s, {}
        rates = {
            peer: (count - before[peer]) / passed_s
            for peer, count in steps.items()
            if before.get(peer, 0) > 0
        }
        if len(rates) < _FEWEST:
            return {}
        middle = median(rates.values())
        return {
            peer: Slow(rate, middle)
            for peer, rate in rates.items()
            if rate * passed_s + (peer in waited_s)
            < self.min_share * middle * (passed_s - waited_s.get(peer, 0.0))
        }
