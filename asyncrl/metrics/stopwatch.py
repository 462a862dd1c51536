"""Divides the time of one thread among named phases.

Needs no list of phases in advance. It reads the clock once per lap, not once per call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path


class Stopwatch:
    """Adds the time since the last lap to a phase, so that the phases add up to the whole time.

    One thread calls `start` and `lap`. Another thread may call `take` and `totals` without losing
    or repeating a lap: only `lap` writes the sums, each with a single store.
    """

    __slots__ = ("_clock", "_last", "_sums", "_taken")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sums: dict[str, tuple[float, int]] = {}
        self._taken: dict[str, tuple[float, int]] = {}
        self._last = clock()

    def start(self) -> None:
        """Start, or continue after a pause; the time until now counts for no phase."""
        self._last = self._clock()

    def lap(self, phase: str) -> float:
        """Add the time since the last lap to `phase`, and return it in seconds."""
        now = self._clock()
        elapsed = now - self._last
        self._last = now
        seconds, count = self._sums.get(phase, (0.0, 0))
        self._sums[phase] = (seconds + elapsed, count + 1)
        return elapsed

    def take(self) -> dict[str, tuple[float, int]]:
        """Return seconds and laps of each phase since the last call of `take`."""
        before, self._taken = self._taken, self._sums.copy()
        return {
            phase: (seconds - before[phase][0], count - before[phase][1])
            if phase in before
            else (seconds, count)
            for phase, (seconds, count) in self._taken.items()
        }

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase over the whole time."""
        return {phase: seconds for phase, (seconds, _) in self._sums.copy().items()}


def processor_s() -> float:
    """Return the processor time of this process; in a thread beside the main one, of the thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return time.process_time() if is_main else time.thread_time()


def waited_for_cores_s() -> float:
    """Return for how long this thread was ready to run and had no core; nan if nothing says so."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return math.nan


def ms_per_lap(laps: Mapping[str, tuple[float, int]], phases: Collection[str]) -> dict[str, float]:
    """Return the milliseconds per lap, as `ms/PHASE`, of the given phases that had laps."""
    return {
        f"ms/{phase}": 1000 * seconds / count
        for phase, (seconds, count) in laps.items()
        if count and phase in phases
    }


def shares_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's share of the time between two `totals`; if none passed, of `before`."""
    seconds = {phase: s - before.get(phase, 0.0) for phase, s in after.items()}
    passed_s = sum(seconds.values())
    if passed_s <= 0:
        seconds, passed_s = dict(after), sum(after.values()) or 1.0
    return {phase: s / passed_s for phase, s in seconds.items()}
