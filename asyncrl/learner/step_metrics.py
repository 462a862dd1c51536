"""Summarises what an agent returns from each optimisation step: mean, minimum, maximum and count.

An agent's numbers may be tensors on a device. They are kept as they are and read together, many
steps at a time, so that no step waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from asyncrl.core.agent import as_number
from asyncrl.core.types import Array

_READ_TOGETHER = 256
"""Steps whose numbers are kept before they are read."""


@dataclass(slots=True)
class _Summary:
    """Statistics of one number."""

    count: int = 0
    total: float = 0.0
    least: float = np.inf
    most: float = -np.inf

    def add(self, values: Array) -> None:
        """Add values; NaN stays visible in all statistics."""
        self.count += len(values)
        self.total += float(values.sum())
        self.least = float(np.minimum(self.least, values.min()))
        self.most = float(np.maximum(self.most, values.max()))


class StepMetrics:
    """Summaries of an agent's numbers over the steps since the last call of `take`."""

    def __init__(self) -> None:
        self.last: Mapping[str, float] = {}
        """The newest summary that contains a step."""

        self._unread: list[Mapping[str, SupportsFloat]] = []
        self._steps = 0
        self._summaries: dict[str, _Summary] = {}

    def add(self, numbers: Mapping[str, SupportsFloat]) -> None:
        """Add the numbers of one step."""
        self._unread.append(numbers)
        if len(self._unread) >= _READ_TOGETHER:
            self._read()

    def take(self) -> Mapping[str, float]:
        """Return the summary by name; empty without a step.

        `<name>` is the mean. `<name>_min` and `<name>_max` are absent if all values are equal, or
        if the agent itself returns a number of that name. `count` is the number of steps.
        """
        self._read()
        if not self._steps:
            return {}
        record = {name: summary.total / summary.count for name, summary in self._summaries.items()}
        for name, summary in self._summaries.items():
            if summary.least != summary.most:
                record.setdefault(f"{name}_min", summary.least)
                record.setdefault(f"{name}_max", summary.most)
            else:
                record[name] = summary.most  # without the rounding error of the sum
        record.setdefault("count", float(self._steps))
        self._steps, self._summaries = 0, {}
        self.last = record
        return record

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        self._steps += len(unread)
        for name in dict.fromkeys(name for numbers in unread for name in numbers):
            values = [numbers[name] for numbers in unread if name in numbers]
            self._summaries.setdefault(name, _Summary()).add(_read_together(name, values))


def _read_together(name: str, values: Sequence[SupportsFloat]) -> Array:
    """Return the numbers as an array; those on a device are copied to the host at once."""
    if getattr(values[0], "device", None) is not None and (together := _on_host(values)):
        return np.array(together)
    try:
        return np.array([float(value) for value in values])
    except (TypeError, ValueError, RuntimeError):
        return np.array([as_number(f"agent/{name}", value) for value in values])


def _on_host(values: Sequence[Any]) -> list[float] | None:
    """Return scalars that are on one GPU as a list; None if they are elsewhere."""
    if not all(getattr(value, "is_cuda", False) and not value.ndim for value in values):
        return None
    try:
        numbers: list[float] = sys.modules["torch"].stack(values).tolist()
    except RuntimeError:  # of several GPUs
        return None
    return numbers
