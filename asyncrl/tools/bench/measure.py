"""Measures value and limit in turns, so that other load on the machine affects both alike.

The ways to count, which read the clock, are at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from asyncrl.core.errors import AsyncRLError
from asyncrl.tools.bench.result import Quantity, Result, Round, summarise
from asyncrl.tools.bench.workload import Workload

Rates = Sequence[float]
"""One rate for each of a stage's quantities."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """A measurement and its limit."""

    quantities: Sequence[Quantity]
    """The quantities it measures."""

    value: Callable[[], Rates]
    """Measures asyncrl for one slice, after warm-up."""

    limit: Callable[[], Rates]
    """Measures the upper bound for any framework, in the same way."""

    slices: int = 1
    """Number of parts in which value and limit of one round are measured, in turns.

    Many slices are best for what runs in this process, because other load then affects both alike.
    """

    release: Callable[[], object] = lambda: None
    """Releases resources other than memory; may be called again."""

    def close(self) -> None:
        """Release resources; may be called again."""
        self.value = self.limit = _closed
        self.release()


def _closed() -> Rates:
    raise RuntimeError("the stage is closed")


class Rounds:
    """The rounds of one stage. Only complete rounds count, even if the last one is interrupted."""

    def __init__(self, stage: Stage, *, seconds: float, machine: Mapping[str, Any]) -> None:
        self._stage = stage
        self._seconds = seconds
        self._machine = machine
        self._load_before = os.getloadavg()[0]
        self._rounds: list[tuple[Rates, Rates]] = []

    def run(self, repeats: int, on_step: Callable[[int, str], None]) -> None:
        """Measure; `on_step` is called with the number of the round and what is measured.

        Every other slice begins with the limit, so that a machine that gets slower favours neither.
        """
        for number in range(1, repeats + 1):
            self._rounds.append(self._round(number, on_step))

    def results(self) -> list[Result]:
        """Return one result per quantity; empty before the first complete round."""
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

    def _round(self, number: int, on_step: Callable[[int, str], None]) -> tuple[Rates, Rates]:
        rates: dict[str, list[Rates]] = {"value": [], "limit": []}
        slices = self._stage.slices
        if slices > 1:
            on_step(number, "value and limit")
        for i in range(slices):
            for name in ("value", "limit") if (number + i) % 2 else ("limit", "value"):
                if slices == 1:
                    on_step(number, name)
                rates[name].append(self._measure(name))
        value, limit = (_means(parts) for parts in rates.values())
        return value, limit

    def _measure(self, name: str) -> Rates:
        measure = self._stage.value if name == "value" else self._stage.limit
        rates = measure()
        for quantity, rate in zip(self._stage.quantities, rates, strict=True):
            if not rate > 0:
                raise AsyncRLError(
                    f"{quantity.stage}: nothing was counted in {self._seconds:g} s; give a larger "
                    "--seconds"
                )
        return rates


def _means(parts: Sequence[Rates]) -> Rates:
    """Return the mean of each quantity over slices of the same length."""
    return [sum(rates) / len(parts) for rates in zip(*parts, strict=True)]


Count = Callable[[], tuple[int, int]]
"""Returns a count, and the number of processes that contribute to it so far."""

_START_DEADLINE_S = 120.0
_SILENCE_S = 10.0
"""What sends to this process may wait for a core for longer than a short measurement takes."""

_POLL_S = 0.02
_CHANGE_POLL_S = 0.001
_CHUNK_S = 0.01


class Repeating:
    """Work that is repeated and returns its amount each time.

    The first measurement warms up and determines how many repetitions take 10 ms: the clock is read
    once per that many.
    """

    def __init__(
        self,
        work: Callable[[], float],
        *,
        warm_up_seconds: float,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """`settle` waits for work that was only queued, before the clock is read."""
        self._work = work
        self._warm_up_seconds = warm_up_seconds
        self._settle = settle
        self._calls = 0

    def rate(self, seconds: float) -> float:
        """Return the amount per second, measured over `seconds`, longer until there is any."""
        if not self._calls:
            self._warm_up()
        work, calls = self._work, self._calls
        done, began = 0.0, time.perf_counter()
        end = began + seconds
        while (now := time.perf_counter()) < end or (not done and now < end + _SILENCE_S):
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


def side_by_side(
    quantities: Sequence[Quantity],
    ours: Sequence[Callable[[], float]],
    limits: Sequence[Callable[[], float]],
    workload: Workload,
    *,
    slices: int = 0,
    settle: Callable[[], object] = lambda: None,
    release: Callable[[], object] = lambda: None,
) -> Stage:
    """Return a stage in this process that compares the work of asyncrl with that of the limit.

    Args:
        quantities: The quantities that are measured.
        ours: Work that is repeated and returns its amount each time.
        limits: The same for the limit.
        workload: Gives the durations.
        slices: As in `Stage`; 0 takes the number from the workload's duration.
        settle: Waits for work that was only queued.
        release: As in `Stage`.
    """
    slices = slices or workload.slices

    def measuring(works: Sequence[Callable[[], float]]) -> Callable[[], Rates]:
        warm_up_seconds = workload.warm_up_seconds
        repeating = [
            Repeating(work, warm_up_seconds=warm_up_seconds, settle=settle) for work in works
        ]
        return lambda: [work.rate(workload.seconds / slices) for work in repeating]

    return Stage(
        quantities=quantities,
        value=measuring(ours),
        limit=measuring(limits),
        slices=slices,
        release=release,
    )


def wait_until_running(count: Count, wanted: int, what: str) -> None:
    """Wait until `wanted` processes contribute to a count."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while (going := count()[1]) < wanted:
        if time.monotonic() > deadline:
            raise AsyncRLError(
                f"only {going} of {wanted} {what} started within {_START_DEADLINE_S:.0f} s; start "
                "fewer, or check why environments cannot be made"
            )
        time.sleep(_POLL_S)


def growth_rate(count: Count, seconds: float) -> float:
    """Return the growth of a count per second, measured over slightly more than `seconds`."""
    started_s, before = _at_next_change(count)
    time.sleep(max(0.0, started_s + seconds - time.monotonic()))
    ended_s, after = _at_next_change(count)
    return (after - before) / (ended_s - started_s)


def _at_next_change(count: Count) -> tuple[float, int]:
    """Wait until the count changes: what arrives in bursts is measured from burst to burst."""
    before = count()[0]
    deadline = time.monotonic() + _START_DEADLINE_S
    while (now := count()[0]) == before:
        if time.monotonic() > deadline:
            raise AsyncRLError(f"nothing was counted in {_START_DEADLINE_S:.0f} s")
        time.sleep(_CHANGE_POLL_S)
    return time.monotonic(), now
