"""Value and limit measured in turns, so that whatever else the machine does meets both alike.

Knows no clock: `rates.py` has the ways to count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from asyncrl.benchmarking.result import Quantity, Result, Round, summarise
from asyncrl.core.errors import AsyncRLError

Rates = Sequence[float]
"""One number for each of a stage's quantities."""


class Stage(Protocol):
    """Something that can be measured, and what bounds it."""

    @property
    def quantities(self) -> Sequence[Quantity]:
        """What it measures."""
        ...

    @property
    def slices(self) -> int:
        """Parts in which value and limit of one round are measured, in turns.

        What runs in this very process is best measured in many: whatever else the machine does
        then meets both alike.
        """
        ...

    def measure_value(self) -> Rates:
        """Measure asyncrl for one slice, warmed up."""
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

        Every other slice begins with the limit, so that a machine which gets slower and slower
        favours neither.
        """
        for number in range(1, repeats + 1):
            self._rounds.append(self._round(number, on_step))

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
        measure = self._stage.measure_value if name == "value" else self._stage.measure_limit
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
