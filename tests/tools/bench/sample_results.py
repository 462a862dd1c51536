"""Results as a measurement would return them, and a stage that measures numbers it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asyncrl.tools.bench.measure import Rates
from asyncrl.tools.bench.result import Quantity, Result, Round, summarise

MACHINE: dict[str, Any] = {
    "processor": "a processor",
    "cores": 8,
    "usable_cores": 4,
    "memory_gib": 31.5,
    "gpus": [],
    "platform": "Linux",
    "python": "3.11",
    "asyncrl": "1",
    "torch": "2",
    "numpy": "3",
    "gymnasium": "4",
    "pyzmq": "5",
}


def a_quantity(**changes: Any) -> Quantity:
    known: dict[str, Any] = {
        "stage": "sample",
        "env": "CartPole-v1",
        "unit": "agent steps/s",
        "limit_is": "bare loop",
        "settings": {"actors": 2},
    }
    return Quantity(**{**known, **changes})


def a_result(
    *rounds: tuple[float, float],
    machine: dict[str, Any] = MACHINE,
    load_before: float = 0.25,
    **changes: Any,
) -> Result:
    """Return the summary of rounds of (value, limit)."""
    measured = [Round(*pair) for pair in rounds or [(80.0, 100.0)]]
    return summarise(
        a_quantity(**changes), measured, seconds=1.0, load_before=load_before, machine=machine
    )


class FakeStage:
    """Returns given measurements, and keeps the order of the requests."""

    def __init__(
        self,
        values: Sequence[Rates],
        limits: Sequence[Rates],
        quantities: Sequence[Quantity] | None = None,
        *,
        slices: int = 1,
    ) -> None:
        self.slices = slices
        self.quantities = quantities or [a_quantity()]
        self.asked: list[str] = []
        self.closed = False
        self._values: Iterator[Rates] = iter(values)
        self._limits: Iterator[Rates] = iter(limits)

    def value(self) -> Rates:
        return self._next("value", self._values)

    def limit(self) -> Rates:
        return self._next("limit", self._limits)

    def close(self) -> None:
        self.closed = True

    def _next(self, name: str, rates: Iterator[Rates]) -> Rates:
        self.asked.append(name)
        try:
            return next(rates)
        except StopIteration:
            raise KeyboardInterrupt from None
