"""How far a run has come, how fast it is, and how its time was spent. Records nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from asyncrl.core.errors import ConfigError
from asyncrl.metrics.stopwatch import Stopwatch, ms_per_lap, shares_between

_SLIVER = 0.1
"""Minimum share of the record interval over which rates are computed."""


@dataclass(slots=True)
class Counts:
    """The counters of a run."""

    env_steps: int = 0
    opt_steps: int = 0


class RunTimes(NamedTuple):
    """The times of a whole run; the names are those of `TrainResult`."""

    wall_s: float
    resumed_at_s: float
    start_up_s: float
    end_s: float
    learner_shares: dict[str, float]


class Pace:
    """Measures a run by its counters, the laps of the learner's thread, and a clock.

    Args:
        counts: Counters of the run; the trainer increments them.
        watch: Stopwatch of the learner's thread; all code in that thread laps it.
        clock: Seconds of wall-clock time.
    """

    def __init__(self, counts: Counts, watch: Stopwatch, clock: Callable[[], float]) -> None:
        self._counts, self._watch, self._clock = counts, watch, clock
        self._before_s = self._trained_before_s = 0.0
        self._began_at = self._recorded_at = clock()
        self._began_opt_steps = 0
        self._recorded = Counts()
        self._recorded_stored = 0.0
        self._recorded_span_s = 0.0
        self._start_up_s: float | None = None
        self._first_steps: int | None = None
        self._stepped_at: float | None = None
        self._first_totals: dict[str, float] = {}
        self._end_at = 0.0
        self._end: tuple[float, dict[str, float]] | None = None

    def resume_at(self, wall_s: float, train_s: float) -> None:
        """Add the seconds of a resumed run's earlier parts; call it before `start`."""
        self._before_s, self._began_at = wall_s, self._clock()
        self._trained_before_s = train_s

    def start(self, stored: float) -> None:
        """Start the clock; `stored` transitions were stored before."""
        self._began_at = self._recorded_at = self._clock()
        self._began_opt_steps = self._counts.opt_steps
        self._recorded = Counts(self._counts.env_steps, self._counts.opt_steps)
        self._recorded_stored = stored

    def turn(self) -> bool:
        """Return True once, after the first optimisation step since `start`: the start-up is over.

        Also notes the first environment step, at which the training time starts.
        """
        if self._stepped_at is None:
            self._find_first_step()
        if self._start_up_s is not None or self._counts.opt_steps == self._began_opt_steps:
            return False
        self._start_up_s, self._first_totals = self.part_s, self._watch.totals()
        return True

    def end(self) -> None:
        """Stop the time shares: learning is over."""
        self._end_at = self._clock()
        self._end = self.wall_s, self._watch.totals()

    @property
    def wall_s(self) -> float:
        """Seconds since the run began, without the pauses between the parts of a resumed run."""
        return self._before_s + self.part_s

    @property
    def train_s(self) -> float:
        """The same, but from the first environment step of each part to the end of its learning."""
        if self._stepped_at is None:
            return self._trained_before_s
        until = self._end_at if self._end else self._clock()
        return self._trained_before_s + until - self._stepped_at

    @property
    def part_s(self) -> float:
        """Seconds since the run began or was resumed."""
        return self._clock() - self._began_at

    def axes(self) -> dict[str, float]:
        """Return the counters and times that all records contain."""
        counts = self._counts
        return {
            "env_steps": float(counts.env_steps),
            "opt_steps": float(counts.opt_steps),
            "wall_s": self.wall_s,
            "train_s": self.train_s,
        }

    def record(self, stored: float) -> dict[str, float]:
        """Return rates, shares and times since the last call; `stored` transitions so far.

        A last record right after another one has no rates: over such a short time they mean
        nothing.
        """
        return self._rates(stored) | self._times()

    def run_times(self) -> RunTimes:
        """Return the times of the whole run."""
        end_at_s, totals = self._end or (self.wall_s, self._watch.totals())
        return RunTimes(
            wall_s=self.wall_s,
            resumed_at_s=self._before_s,
            start_up_s=self.part_s if self._start_up_s is None else self._start_up_s,
            end_s=self.wall_s - end_at_s,
            learner_shares=shares_between(self._first_totals, totals),
        )

    def _find_first_step(self) -> None:
        steps = self._counts.env_steps or self._counts.opt_steps  # offline, env_steps is 0
        if self._first_steps is None:  # not those at `start`: a checkpoint may lack the last ones
            self._first_steps = steps
        elif steps != self._first_steps:
            self._stepped_at = self._clock()

    def _rates(self, stored: float) -> dict[str, float]:
        now, counts = self._clock(), self._counts
        seconds, before_s = max(now - self._recorded_at, 1e-9), self._recorded_span_s
        rates: dict[str, float] = {}
        if self._end is None or self._end_at - self._recorded_at >= _SLIVER * before_s:
            rates["fps"] = (counts.env_steps - self._recorded.env_steps) / seconds
            rates["opt_steps_per_sec"] = (counts.opt_steps - self._recorded.opt_steps) / seconds
            rates["samples_per_sec"] = (stored - self._recorded_stored) / seconds
        self._recorded_span_s = seconds
        if counts.opt_steps:
            rates["samples_per_opt_steps"] = stored / counts.opt_steps
        self._recorded_at, self._recorded_stored = now, stored
        self._recorded = Counts(counts.env_steps, counts.opt_steps)
        return rates

    def _times(self) -> dict[str, float]:
        laps = self._watch.take()
        total = sum(seconds for seconds, _ in laps.values()) or 1.0
        times = {f"share/learner_{phase}": seconds / total for phase, (seconds, _) in laps.items()}
        return times | ms_per_lap(laps, laps.keys() - {"wait", "other"})


class Every:
    """Due whenever a count reaches or passes a multiple of `interval`.

    A count may jump over several multiples at once. They are then due once, together, and the next
    one is the next multiple: with an interval of 30, a count that goes 100, 110, 120 is due at 100
    and at 120.
    """

    def __init__(self, interval: int, *, start: int = 0) -> None:
        """Begin after `start`, where a resumed run continues. An interval of 0 is never due."""
        for name, value in (("interval", interval), ("start", start)):
            if type(value) is not int or value < 0:
                raise ConfigError(f"{name} must be a whole number, 0 or more, got {value!r}")
        self._interval = interval
        self._next: float = self._after(start)

    def due(self, count: int) -> bool:
        """Return whether a multiple was reached since it was last due; True once per multiple."""
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

    Delays do not add up. Intervals that were missed are due once, together.
    """

    def __init__(self, interval_s: float, now: float) -> None:
        """Begin at `now`. An interval of 0 is never due."""
        if not 0 <= interval_s < math.inf:
            raise ConfigError(
                f"interval_s must be a number of seconds, or 0 to disable, got {interval_s!r}"
            )
        self._interval_s = interval_s
        self._start = now
        self._next = now + interval_s if interval_s else math.inf

    def due(self, now: float) -> bool:
        """Return whether the next point of the grid has been reached; True once per point."""
        if now < self._next:
            return False
        passed = math.floor((now - self._start) / self._interval_s)
        self._next = self._start + (passed + 1) * self._interval_s
        if self._next <= now:  # rounding error, if the interval is tiny compared with the time
            self._next = now + self._interval_s
        return True
