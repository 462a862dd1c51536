"""Settings that change during a run: learning rates, exploration, weights of losses.

A setting declared as `float | Schedule` is a number, or a function of the environment steps of the
whole run, which the learner and every actor know (`TorchPolicy.env_steps`). In a file it is written
as in a flag, `learning_rate: 0:3e-4,1e6:0`, or in full:

    learning_rate:
      points: [[0, 3.0e-4], [1000000, 0.0]]
      interpolate: true
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, TypeAlias

from asyncrl.core.declared import Positive, Within
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import as_whole

_STEPS = "steps,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A piecewise function of the environment steps of the whole run."""

    form: ClassVar[str] = "STEPS:FLOAT,..."
    """How it is written in one word."""

    points: tuple[tuple[int, float], ...]
    """Pairs of environment step and value, in ascending order of steps. Before the first point its
    value holds; after the last point, the last value."""

    interpolate: bool = True
    """Interpolate linearly between points. Off holds each value until the next point."""

    def __post_init__(self) -> None:
        steps = [env_steps for env_steps, _ in self.points]
        if not steps:
            raise ConfigError("a schedule needs at least one point (env_steps, value), got none")
        if not all(isinstance(env_steps, int) for env_steps in steps):
            raise ConfigError(f"environment steps of a schedule must be whole numbers, got {steps}")
        if steps[0] < 0 or any(a >= b for a, b in pairwise(steps)):
            raise ConfigError(
                "points of a schedule must be in ascending order of environment steps, from 0 or "
                f"more, got {steps}"
            )
        for env_steps, value in self.points:
            if not math.isfinite(value):
                raise ConfigError(
                    f"values of a schedule must be finite, got {value} at {env_steps} environment "
                    "steps"
                )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Return what a text says: `0:3e-4,1e6:0`, or with `steps,` before it, not interpolated."""
        try:
            pairs = [point.split(":") for point in text.removeprefix(_STEPS).split(",")]
            points = tuple((as_whole(at), float(value)) for at, value in pairs)
        except ValueError as error:
            raise ConfigError(
                "expected a number, or points of environment steps and values as in "
                f"0:3e-4,1e6:0, got {text!r}"
            ) from error
        return cls(points=points, interpolate=not text.startswith(_STEPS))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        points = ",".join(f"{env_steps}:{value}" for env_steps, value in self.points)
        return points if self.interpolate else _STEPS + points

    @classmethod
    def linear(cls, start: float, end: float, env_steps: int) -> Schedule:
        """Return a schedule that changes linearly from `start` to `end` over `env_steps`."""
        return cls(points=((0, start), (env_steps, end)))

    def at(self, env_steps: int) -> float:
        """Return the value after this number of environment steps; exact at points."""
        after = bisect.bisect_right(self.points, env_steps, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        begin, value = self.points[after - 1]
        if not self.interpolate or after == len(self.points) or env_steps == begin:
            return value
        end, end_value = self.points[after]
        return value + (end_value - value) * (env_steps - begin) / (end - begin)


def value_at(setting: float | Schedule, env_steps: int) -> float:
    """Return a setting's value after this number of environment steps."""
    return setting.at(env_steps) if isinstance(setting, Schedule) else setting


Rate: TypeAlias = Annotated[float | Schedule, Within("[0, inf)")]
ShareOverTime: TypeAlias = Annotated[float | Schedule, Within("[0, 1]")]
# A schedule may reach 0; a constant 0 would learn nothing.
LearningRate: TypeAlias = Positive | Annotated[Schedule, Within("[0, inf)")]
