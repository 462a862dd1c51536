"""Value and limit measured in turns, so that whatever else the machine does meets both alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from asyncrl.benchmarking.result import Quantity, Result, Round, summarise
from asyncrl.errors import AsyncRLError

__all__ = ["Count", "Rates", "Rounds", "Stage", "growth_rate", "repeat_rate", "wait_until_going"]

Rates = Sequence[float]
"""One number for each of a stage's quantities."""

Count = Callable[[], tuple[int, int]]
"""Returns a count, and how many processes contribute to it by now."""

_START_DEADLINE_S = 120.0
_POLL_S = 0.02
_CHANGE_POLL_S = 0.001
_CHUNK_S = 0.01


class Stage(Protocol):
    """Something that can be measured, and what bounds it."""

    @property
    def quantities(self) -> Sequence[Quantity]:
        """What it measures."""
        ...

    def measure_value(self) -> Rates:
        """Measure asyncrl, after a warm-up."""
        ...

    def measure_limit(self) -> Rates:
        """Measure what no framework can exceed, in the same way."""
        ...

    def close(self) -> None:
        """Release what it holds; may be called again."""
        ...


class Rounds:
    """The rounds of one stage. Those that are complete count, however the last one ends."""

    def __init__(self, stage: Stage, *, seconds: float, machine: Mapping[str, Any]) -> None:
        self._stage = stage
        self._seconds = seconds
        self._machine = machine
        self._load_before = os.getloadavg()[0]
        self._rounds: list[tuple[Rates, Rates]] = []

    def run(self, repeats: int, on_step: Callable[[int, str], None]) -> None:
        """Measure; `on_step` hears which round it is, and of what.

        Every other round begins with the limit, so that a machine which gets slower and slower
        favours neither.
        """
        for number in range(1, repeats + 1):
            names = ("value", "limit") if number % 2 else ("limit", "value")
            rates = {name: self._measure(name, number, on_step) for name in names}
            self._rounds.append((rates["value"], rates["limit"]))

    def results(self) -> list[Result]:
        """Return one result for each quantity; none before the first round is complete."""
        if not self._rounds:
            return []
        return [
            summarise(
                quantity,
                [Round(value[i], limit[i]) for value, limit in self._rounds],
                seconds=self._seconds,
                load_before=self._load_before,
                machine=self._machine,
            )
            for i, quantity in enumerate(self._stage.quantities)
        ]

    def _measure(self, name: str, number: int, on_step: Callable[[int, str], None]) -> Rates:
        on_step(number, name)
        measure = self._stage.measure_value if name == "value" else self._stage.measure_limit
        rates = measure()
        for quantity, rate in zip(self._stage.quantities, rates, strict=True):
            if not rate > 0:
                raise AsyncRLError(
                    f"{quantity.stage}: nothing was counted in {self._seconds:g} s; give a larger "
                    "--seconds"
                )
        return rates


def repeat_rate(
    work: Callable[[], float],
    *,
    seconds: float,
    warm_up_seconds: float,
    settle: Callable[[], object] = lambda: None,
) -> float:
    """Call `work` again and again; return the sum of what it returns, per second.

    The clock is read every 10 ms or so, not between any two calls. `settle` waits, before the
    clock is read for the last time, for what `work` has only ordered.
    """
    calls = 1
    warm_until = time.perf_counter() + warm_up_seconds
    while True:
        began = time.perf_counter()
        for _ in repeat(None, calls):
            work()
        now = time.perf_counter()
        if now >= warm_until:
            break
        if now - began < _CHUNK_S:
            calls *= 2
    settle()
    done, began = 0.0, time.perf_counter()
    end = began + seconds
    while time.perf_counter() < end:
        for _ in repeat(None, calls):
            done += work()
    settle()
    return done / (time.perf_counter() - began)


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
