"""Conditions stop for what they name, when they should, and say so."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSamples,
    MaxSeconds,
    Plateaus,
    ReachesLowerBound,
    ReachesUpperBound,
    StopCondition,
    StopsFalling,
    StopsRising,
    as_condition,
    check_can_hold,
)

NAN = float("nan")


def stops_at(condition: StopCondition, metric: str, values: list[float]) -> int | None:
    """Return the index of the first value at which it says stop."""
    verdicts = [condition.update({metric: value}) for value in values]
    return next((i for i, verdict in enumerate(verdicts) if verdict), None)


@pytest.mark.parametrize(
    ("condition", "metric", "limit", "reason"),
    [
        (MaxEnvSteps(10_000), "env_steps", 10_000, "10,000 environment steps are done"),
        (MaxOptSteps(100), "opt_steps", 100, "100 optimisation steps are done"),
        (MaxSamples(100), "samples_total", 100, "100 transitions are stored"),
        (MaxSeconds(99.5), "train_s", 99.5, "99.5 s of training are over"),
    ],
)
def test_a_limit_stops_at_its_number_and_not_before(
    condition: StopCondition, metric: str, limit: float, reason: str
) -> None:
    assert condition.update({metric: limit - 0.5}) is None
    assert condition.update({"something_else": 1e9}) is None
    assert condition.update({metric: limit}) == reason
    assert condition.update({metric: limit + 0.00297}) == reason
    assert condition.limits() == {metric: limit}
    condition.reset()
    assert condition.update({}) is None


def test_bounds_name_metric_value_and_bound() -> None:
    upper, lower = ReachesUpperBound("eval_reward", 475), ReachesLowerBound("agent/loss", 0.1)
    assert upper.update({"eval_reward": 474.9}) is None
    assert upper.update({"eval_reward": 487.2}) == "an evaluation reached 475 (487.2)"
    assert lower.update({"agent/loss": 0.11}) is None
    assert lower.update({"agent/loss": 0.1}) == "agent/loss fell to 0.1"
    assert lower.update({"agent/loss": 0.05}) == "agent/loss fell to 0.1 (0.05)"
    assert upper.limits() == lower.limits() == {}


def test_a_bound_counts_only_while_the_newest_value_says_so() -> None:
    condition = ReachesUpperBound("eval_reward", 10)
    assert condition.update({"eval_reward": 11.0})
    assert condition.update({"env_steps": 1.0}), "no newer value: the verdict stands"
    assert condition.update({"eval_reward": NAN}), "NaN is no newer value"
    assert condition.update({"eval_reward": 9.0}) is None


@pytest.mark.behaviour(number=44)
@pytest.mark.parametrize(
    ("condition", "values", "at"),
    [
        (StopsRising("eval_reward", patience=3), [1, 2, 2, 1, 2], 4),
        (StopsRising("eval_reward", patience=3), [1, 2, 2, 1, 2.1, 0, 0], None),
        (StopsRising("eval_reward", patience=2), [5, NAN, 4, math.inf, 4], 4),
        (StopsFalling("eval_reward", patience=2), [5, 4, 4, 6], 3),
        (Plateaus("eval_reward", patience=2, rtol=0.1), [10, 10.9, 9.1], 2),
        (Plateaus("eval_reward", patience=2, rtol=0.1), [10, 10.9, 11.8, 12.9, 14.1], None),
        (Plateaus("eval_reward", patience=2, rtol=0.1), [10, NAN, 10, NAN, 10], 4),
        (Plateaus("eval_reward", patience=2), [-1, -1.0005, -1.0005], 2),
    ],
)
def test_trends_wait_for_their_patience(
    condition: StopCondition, values: list[float], at: int | None
) -> None:
    assert stops_at(condition, "eval_reward", values) == at
    condition.reset()
    assert condition.update({}) is None
    assert stops_at(condition, "eval_reward", values) == at, "reset forgets everything"


def test_or_stops_with_the_first_that_holds() -> None:
    condition = ReachesUpperBound("eval_reward", 10) | MaxEnvSteps(100) | MaxEnvSteps(50)
    assert condition.update({"env_steps": 49.0}) is None
    assert condition.update({"env_steps": 50.0}) == "50 environment steps are done"
    assert condition.limits() == {"env_steps": 50}


def test_and_needs_both_though_they_come_in_different_records() -> None:
    condition = ReachesUpperBound("eval_reward", 10) & MaxEnvSteps(100)
    assert condition.update({"eval_reward": 12.0}) is None
    assert condition.update({"env_steps": 100.0}) == (
        "an evaluation reached 10 (12) and 100 environment steps are done"
    )
    assert condition.update({"eval_reward": 9.0}) is None
    assert condition.limits() == {}
    condition.reset()
    assert condition.update({"eval_reward": 12.0}) is None


def test_a_condition_of_the_users_own_combines_on_either_side() -> None:
    class Solved:
        def update(self, record: Any) -> Any:
            return True

        def reset(self) -> None:
            pass

        def limits(self) -> dict[str, float]:
            return {}

    for either in (Solved() | MaxEnvSteps(5), MaxEnvSteps(5) | Solved()):
        assert either.update({}) == "Solved returned True"
    assert (Solved() & MaxEnvSteps(5)).update({}) is None
    assert (MaxEnvSteps(5) & Solved()).update({}) is None


@pytest.mark.behaviour(number=44)
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: MaxEnvSteps(0), "MaxEnvSteps: n .* 0"),
        (lambda: MaxOptSteps(1.5), "MaxOptSteps: n .* 1.5"),  # type: ignore[arg-type]
        (lambda: MaxSamples(True), "MaxSamples: n .* True"),
        (lambda: MaxSeconds(NAN), "MaxSeconds .* nan"),
        (lambda: ReachesLowerBound("x", NAN), "ReachesLowerBound: bound .* nan"),
        (lambda: ReachesUpperBound("", 1.0), "ReachesUpperBound .* metric"),
        (lambda: StopsRising("x", 0), "StopsRising: patience .* 0"),
        (lambda: Plateaus("x", rtol=-1e-3), "Plateaus: rtol .* -0.001"),
        (AnyOf, "AnyOf"),
        (lambda: MaxEnvSteps(1) & 5, "5"),  # type: ignore[operator]
    ],
)
def test_what_cannot_work_is_refused_by_value(make: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        make()


def test_a_misspelt_metric_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ReachesUpperBound("eval_reward", 1.0)
        ReachesUpperBound("my_own_success_rate", 1.0)
    assert not caplog.records
    ReachesUpperBound("eval_rewards", 1.0)
    assert "did you mean 'eval_reward'?" in caplog.text


RETURN, SPREAD = ReachesUpperBound("eval_reward", 1.0), StopsRising("eval/return_std")
LOSS, STEPS = ReachesLowerBound("agent/loss", 0.1), MaxOptSteps(10)


@pytest.mark.parametrize(
    ("stop", "waits"),
    [
        (None, False),
        (LOSS, False),
        (RETURN, True),
        (RETURN | SPREAD, True),
        (RETURN | STEPS, False),
        (RETURN & STEPS, True),
        ((RETURN & LOSS) | STEPS, False),
        ((RETURN & LOSS) | SPREAD, True),
    ],
)
def test_what_waits_for_evaluations_alone_is_refused_without_them(
    stop: StopCondition | None, waits: bool
) -> None:
    check_can_hold(stop, {"play": False, "interval": False})
    with pytest.raises(ConfigError, match="but interval is off") if waits else nullcontext():
        check_can_hold(stop, {"play": False, "interval": True})


def test_a_function_is_a_stop_condition_alone_and_beside_others() -> None:
    def falls(record: Record) -> str | None:
        return "it fell" if record["agent/loss"] < 1 else None

    stop = as_condition(falls) | MaxEnvSteps(100)
    assert stop.update({"agent/loss": 2.0}) is None
    assert stop.update({"agent/loss": 0.5}) == "it fell"
    assert stop.limits() == {"env_steps": 100}
    assert as_condition(lambda _: True).update({}) == "<lambda> returned True"
    for value, reason in ((True, "<lambda> returned True"), (False, None)):
        answer = as_condition(lambda _, value=value: np.bool_(value)).update({})  # type: ignore[misc]
        assert answer == reason
        assert answer is None or type(answer) is str, "the summary holds it"
    both = MaxEnvSteps(100) & falls
    assert both.update({"agent/loss": 0.5}) is None
    with pytest.raises(ConfigError, match="or a function of a record"):
        as_condition(MaxEnvSteps)
