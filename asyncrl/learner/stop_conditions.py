"""When a run ends, as conditions that combine with `&` and `|`.

    stop = ReachesUpperBound("eval_reward", 475) | MaxSeconds(3600)

A condition sees every record and stops nothing itself. Not every record contains every metric:
`eval_reward` is in those of evaluations only. So a condition holds, or not, until the next value of
its metric: `a & b` holds when both hold for their newest values, which need not be in one record.
NaN is not a value and changes nothing. A condition has state, so use each object in one place of
one run.
"""

from __future__ import annotations

import difflib
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.core.settings import has_methods
from asyncrl.metrics.metrics import METRICS, describe

logger = logging.getLogger(__name__)


class StopCondition(Protocol):
    """Looks at records and decides when to stop, and why."""

    def update(self, record: Record) -> str | None:
        """Process one record; return the reason to stop, in words, or None to continue."""
        ...

    def reset(self) -> None:
        """Forget all records."""
        ...

    def limits(self) -> Mapping[str, float]:
        """Return the values of metrics at which it certainly stops, for progress bars."""
        ...


StopFunction = Callable[[Record], str | bool | None]
"""A function as a stop condition: it gets each record, and returns the reason to stop, True, or
None."""


class _Condition(StopCondition):
    """Combines with others, and has no limits by default."""

    def limits(self) -> Mapping[str, float]:
        return {}

    def __and__(self, other: StopCondition | StopFunction) -> AllOf:
        return AllOf(self, other)

    def __or__(self, other: StopCondition | StopFunction) -> AnyOf:
        return AnyOf(self, other)

    def __rand__(self, other: StopCondition | StopFunction) -> AllOf:
        return AllOf(other, self)

    def __ror__(self, other: StopCondition | StopFunction) -> AnyOf:
        return AnyOf(other, self)


class _OnMetric(_Condition):
    """Judges each value of one metric, and keeps the result until the next value."""

    metric: str
    _verdict: str | None = None

    def update(self, record: Record) -> str | None:
        value = record.get(self.metric)
        if value is not None and not math.isnan(value):
            self._verdict = self._judge(value)
        return self._verdict

    def reset(self) -> None:
        self._verdict = None

    @abstractmethod
    def _judge(self, value: float) -> str | None: ...


class _Limit(_OnMetric):
    """Holds once a counter of the run has reached a number."""

    _limit: float
    _words: str

    def limits(self) -> Mapping[str, float]:
        return {self.metric: self._limit}

    def _judge(self, value: float) -> str | None:
        return f"{_text(self._limit)} {self._words}" if value >= self._limit else None


@dataclass
class _CountLimit(_Limit):
    n: int

    def __post_init__(self) -> None:
        self._limit = _at_least_one(self, "n", self.n)


class MaxEnvSteps(_CountLimit):
    """Stops after `n` environment steps of all training environments together."""

    metric = "env_steps"
    _words = "environment steps are done"


class MaxOptSteps(_CountLimit):
    """Stops after `n` optimisation steps."""

    metric = "opt_steps"
    _words = "optimisation steps are done"


class MaxSamples(_CountLimit):
    """Stops after `n` transitions have been stored in replay."""

    metric = "samples_total"
    _words = "transitions are stored"


@dataclass
class MaxSeconds(_Limit):
    """Stops `s` seconds after the first environment step; offline, the first optimisation step.

    The seconds of all parts of a resumed run add up, each part from its first step.
    """

    s: float

    metric = "train_s"
    _words = "s of training are over"

    def __post_init__(self) -> None:
        if not 0 < self.s < math.inf:
            raise ConfigError(
                f"MaxSeconds needs a positive number of seconds, got {self.s!r}; omit it for no "
                "time limit"
            )
        self._limit = self.s


@dataclass
class _Bound(_OnMetric):
    metric: str
    bound: float

    def __post_init__(self) -> None:
        _check_metric(self, self.metric)
        if math.isnan(self.bound):
            raise ConfigError(f"{type(self).__name__}: bound must be a number, got nan")


class ReachesUpperBound(_Bound):
    """Holds while the newest value of a metric is `bound` or more."""

    def _judge(self, value: float) -> str | None:
        return _reached(self.metric, "reached", value, self.bound) if value >= self.bound else None


class ReachesLowerBound(_Bound):
    """Holds while the newest value of a metric is `bound` or less."""

    def _judge(self, value: float) -> str | None:
        return _reached(self.metric, "fell to", value, self.bound) if value <= self.bound else None


@dataclass
class _Trend(_OnMetric):
    """Holds after `patience` finite values in a row without a change of the kind it looks for."""

    metric: str
    patience: int = 5
    _anchor: float | None = field(default=None, init=False, repr=False, compare=False)
    _since: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_metric(self, self.metric)
        _at_least_one(self, "patience", self.patience)

    def reset(self) -> None:
        super().reset()
        self._anchor, self._since = None, 0

    def _judge(self, value: float) -> str | None:
        if not math.isfinite(value):
            return self._verdict
        if self._anchor is None or self._is_new(value, self._anchor):
            self._anchor, self._since = value, 0
            return None
        self._since += 1
        return self._reason(self._anchor) if self._since >= self.patience else None

    @abstractmethod
    def _is_new(self, value: float, anchor: float) -> bool: ...

    @abstractmethod
    def _reason(self, anchor: float) -> str: ...


class StopsRising(_Trend):
    """Holds after `patience` values in a row, none above the highest one before them."""

    def _is_new(self, value: float, anchor: float) -> bool:
        return value > anchor

    def _reason(self, anchor: float) -> str:
        return f"{self.metric} has not risen above {_text(anchor)} for {self._since} values"


class StopsFalling(_Trend):
    """Holds after `patience` values in a row, none below the lowest one before them."""

    def _is_new(self, value: float, anchor: float) -> bool:
        return value < anchor

    def _reason(self, anchor: float) -> str:
        return f"{self.metric} has not fallen below {_text(anchor)} for {self._since} values"


@dataclass
class Plateaus(_Trend):
    """Holds after `patience` values in a row within `rtol` of the one before them.

    Each is compared with the value at which the plateau began, so a slow drift is not a plateau. A
    metric that is 0 until the agent first succeeds looks like a plateau: combine it with a bound.
    """

    rtol: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rtol < math.inf:
            raise ConfigError(f"Plateaus: rtol must be 0 or more, got {self.rtol!r}")

    def _is_new(self, value: float, anchor: float) -> bool:
        return abs(value - anchor) > self.rtol * abs(anchor)

    def _reason(self, anchor: float) -> str:
        return (
            f"{self.metric} has stayed within {self.rtol:g} of {_text(anchor)} "
            f"for {self._since} values"
        )


@dataclass
class _ByFunction(_Condition):
    """Asks a function about each record."""

    function: StopFunction

    def update(self, record: Record) -> str | None:
        name = getattr(self.function, "__name__", "a function")
        return _reason(self.function(record), name)

    def reset(self) -> None:
        """Do nothing: what a function remembers is its own."""


@dataclass(init=False)
class _Several(_Condition):
    conditions: tuple[StopCondition, ...]

    def __init__(
        self,
        *several: StopCondition | StopFunction,
        conditions: Sequence[StopCondition | StopFunction] = (),
    ) -> None:
        """Combine conditions; the keyword is for saved configs."""
        self.conditions = tuple(map(as_condition, (*several, *conditions)))
        if not self.conditions:
            raise ConfigError(f"{type(self).__name__} needs at least one condition")

    def reset(self) -> None:
        for condition in self.conditions:
            condition.reset()

    def _verdicts(self, record: Record) -> list[str | None]:
        # Update all of them: each must see every record.
        return [_reason(c.update(record), type(c).__name__) for c in self.conditions]


class AnyOf(_Several):
    """Holds while at least one of its conditions does."""

    def update(self, record: Record) -> str | None:
        return next((verdict for verdict in self._verdicts(record) if verdict), None)

    def limits(self) -> Mapping[str, float]:
        """Return the lowest limit of each metric."""
        lowest: dict[str, float] = {}
        for condition in self.conditions:
            for metric, value in condition.limits().items():
                lowest[metric] = min(value, lowest.get(metric, math.inf))
        return lowest


class AllOf(_Several):
    """Holds while all of its conditions do. It has no limits: no single condition stops the run."""

    def update(self, record: Record) -> str | None:
        verdicts = [verdict for verdict in self._verdicts(record) if verdict]
        return " and ".join(verdicts) if len(verdicts) == len(self.conditions) else None


def _reason(answer: object, name: str) -> str | None:
    """Return in words what a user's function or class has answered: text, a bool or None."""
    if isinstance(answer, str):
        return answer or None
    # A comparison with numpy's numbers gives a bool of numpy's.
    return f"{name} returned {answer}" if answer else None


def as_condition(stop: object) -> StopCondition:
    """Return a condition as it is, and a function as a condition; refuse anything else."""
    if has_methods(stop, "update", "reset", "limits"):
        return cast(StopCondition, stop)
    if callable(stop) and not isinstance(stop, type):
        return _ByFunction(stop)
    raise ConfigError(
        f"stop must be a stop condition, got {stop!r:.80}; pass for instance "
        "stop=MaxEnvSteps(100_000), or a function of a record, and combine conditions with | or &"
    )


def check_can_hold(
    stop: StopCondition | StopFunction | None,
    off: Mapping[str, bool],
    name: str = "the stop condition",
) -> None:
    """Refuse an object that is not a condition, or a condition on evaluations that are off."""
    if stop is not None:
        as_condition(stop)
    if (setting := next(filter(off.get, off), "")) and _waits_for_evaluations(stop):
        raise ConfigError(f"{name} waits for evaluations, but {setting} is off: set one of the two")


def _waits_for_evaluations(stop: object) -> bool:
    if isinstance(stop, _Several):
        return (all if isinstance(stop, AnyOf) else any)(
            map(_waits_for_evaluations, stop.conditions)
        )
    return isinstance(stop, _OnMetric) and stop.metric.startswith(("eval_reward", "eval/"))


def _reached(metric: str, verb: str, value: float, bound: float) -> str:
    subject = "an evaluation" if metric == "eval_reward" else metric
    exactly = "" if value == bound else f" ({_text(value)})"
    return f"{subject} {verb} {_text(bound)}{exactly}"


def _text(value: float) -> str:
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:.6g}"


def _at_least_one(owner: object, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{type(owner).__name__}: {name} must be a whole number, 1 or more, got {value!r}"
        )
    return value


_TYPO = 0.8
"""Minimum similarity of two names to suggest one for the other; 1 means equal."""


def _check_metric(owner: object, metric: str) -> None:
    if not metric:
        raise ConfigError(f"{type(owner).__name__} needs the name of a metric, got {metric!r}")
    close = difflib.get_close_matches(metric, METRICS, n=1, cutoff=_TYPO)
    if describe(metric) is None and close:
        # Not an error: custom evaluators may record any name.
        logger.warning(
            "asyncrl has no metric %r; did you mean %r? Ignore this if a custom evaluator records "
            "it",
            metric,
            close[0],
        )
