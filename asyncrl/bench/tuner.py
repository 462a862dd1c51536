"""The search: measures costs in trials, then verifies the best predictions. Starts no run itself.

Its only access to runs is a function that takes a plan and returns the result of a short run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from asyncrl.bench.cost_model import (
    ActorCost,
    LearnerCost,
    Plan,
    Prediction,
    Task,
    actor_counts,
    choose,
    predict,
)
from asyncrl.bench.trial import Trial
from asyncrl.core.errors import AsyncRLError, ConfigError

_STEP = 4
_MOST_ACTORS = 1 << 16
_MOST_ENVS = 256
_MOST_LENGTH = 64
_SEND_SHARE = 0.2
"""Longer segments are tried from this share of an actor's time on."""

_GAIN = 0.9
"""A new cost counts as a gain below this share of the old one."""

_SLOW_STEP_S = 0.5
"""A batch whose step takes longer would hardly have started within a trial."""

_MOST_VERIFIED = 3


class RunsPlan(Protocol):
    """Runs a plan for a few seconds."""

    def __call__(self, plan: Plan, *, limited: bool) -> Trial:
        """Run it with or without the rate limiter; raise `AsyncRLError` if it cannot run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The settings that the search may change."""

    actors: bool = True
    envs: bool = True
    length: bool = True
    most_actors: int = _MOST_ACTORS
    most_envs: int = _MOST_ENVS
    """Maximum environments per actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One short run."""

    plan: Plan
    limited: bool
    """Whether the limiter was meant to be active, so that the rate is that of a real run. `trial`
    says whether it was."""

    trial: Trial
    predicted: Prediction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All trials and the choice."""

    task: Task
    start: Plan
    chosen: Plan
    tried: tuple[TrialRecord, ...]
    took_s: float

    def of(self, plan: Plan) -> TrialRecord | None:
        """Return the run that verified a plan, if there was one."""
        return next((t for t in self.tried if t.limited and t.plan == plan), None)

    @property
    def sentence(self) -> str:
        """The choice, the measurement behind it, and what limits it."""
        found, before = self.of(self.chosen), self.of(self.start)
        if not found:
            return f"chose {self.chosen}: there was no time to verify it in a run"
        rate = f"measured {found.trial.env_steps_per_s:,.0f} env steps/s"
        if self.chosen == self.start:
            rate += ", and no other plan that was tried is faster"
        elif before:
            rate += f" against {before.trial.env_steps_per_s:,.0f} with {before.plan}"
        return f"chose {self.chosen}: {rate}{self._why(found)}"

    def _why(self, found: TrialRecord) -> str:
        actors = "1 actor keeps" if self.chosen.actors == 1 else f"{self.chosen.actors} actors keep"
        match found.predicted and found.predicted.limited_by:
            case "learner":
                return f", because {actors} the learner busy and more would wait for it"
            case "cores":
                return f", because that keeps the {self.task.cores:g} cores busy"
            case "actors":
                return ", because the actors are the slower side and no more fit"
        return ""


@dataclass
class Tuner:
    """Tries plans within a time budget, and chooses one.

    Args:
        run_plan: Runs a plan.
        task: The machine and the algorithm.
        start: The plan to start from, and to improve on.
        budget_s: Time budget. Trials that would probably exceed it are skipped, but for the first.
        search_space: The settings that may change.
        on_tried: Called after each trial.
        on_failed: Called for each plan that could not run, with the error, once another one could.
        clock: Returns the time.
    """

    run_plan: RunsPlan
    task: Task
    start: Plan
    budget_s: float
    search_space: SearchSpace = field(default_factory=SearchSpace)
    on_tried: Callable[[TrialRecord], object] = lambda _: None
    on_failed: Callable[[Plan, AsyncRLError], object] = lambda _plan, _error: None
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Tuning:
        """Measure the costs of steps, predict, verify the best plans, choose."""
        self._began_s = self.clock()
        self._tried: list[TrialRecord] = []
        self._costs: dict[tuple[int, int], ActorCost] = {}
        self._learner_costs: list[LearnerCost] = []
        self._sweep_envs()
        self._sweep_lengths()
        chosen = self._verify()
        return Tuning(
            task=self.task,
            start=self.start,
            chosen=chosen,
            tried=tuple(self._tried),
            took_s=self.clock() - self._began_s,
        )

    def _sweep_envs(self) -> None:
        """Try more environments while that makes a step cheaper; if it never does, try fewer."""
        first, length = self.start.envs_per_actor, self.start.segment_length
        self._cost_of(first, length)
        if not self._costs:
            raise ConfigError(f"{self.start} cannot be tried; give a larger budget of seconds")
        if not self.search_space.envs:
            return
        upwards = self._walk(first, lambda envs: envs * _STEP)
        if not upwards:
            self._walk(first, lambda envs: envs // _STEP)

    def _walk(self, envs: int, step: Callable[[int], int]) -> int:
        """Continue from a number of environments while it pays; return how often it did."""
        length, paid = self.start.segment_length, 0
        while 1 <= (following := step(envs)) <= self.search_space.most_envs:
            before = self._costs[envs, length].total_s
            light = replace(self.start, envs_per_actor=following).is_light
            if before * following > _SLOW_STEP_S or not light:
                break
            cost = self._cost_of(following, length)
            # Fewer environments only have to be as cheap, more have to be cheaper.
            worst = before * (_GAIN if following > envs else 1 / _GAIN)
            if cost is None or cost.total_s > worst:
                break
            envs, paid = following, paid + 1
        return paid

    def _sweep_lengths(self) -> None:
        """Try longer segments if packing and sending takes much of an actor's time."""
        plan = choose(self._predictions()).plan
        while self.search_space.length and plan.segment_length * 2 <= _MOST_LENGTH:
            cost = self._costs[plan.envs_per_actor, plan.segment_length]
            plan = replace(plan, segment_length=plan.segment_length * 2)
            if cost.send_s < _SEND_SHARE * cost.total_s or not plan.is_light:
                return
            longer = self._cost_of(plan.envs_per_actor, plan.segment_length)
            if longer is None or longer.total_s > _GAIN * cost.total_s:
                return

    def _verify(self) -> Plan:
        """Run the plans with the best predictions, their neighbours, and the plan to improve on."""
        predictions = {p.plan: p for p in self._predictions()}
        measured: list[Prediction] = []
        for plan in self._best_predictions(list(predictions.values())):
            tried = self._try(plan, limited=True, predicted=predictions.get(plan))
            if tried is not None:
                measured.append(_measured(tried))
        return choose(measured).plan if measured else choose(list(predictions.values())).plan

    def _best_predictions(self, predictions: list[Prediction]) -> Iterator[Plan]:
        best = choose(predictions)
        plans = [best.plan, self.start]
        others = [p for p in predictions if p.plan.actors != best.plan.actors]
        if others:
            plans.append(choose(others).plan)
        yield from list(dict.fromkeys(plans))[:_MOST_VERIFIED]

    def _predictions(self) -> list[Prediction]:
        """Return predictions for every plan whose costs are known."""
        counts = actor_counts(self.task.cores, also=[self.start.actors])
        if self.search_space.actors:
            counts = [n for n in counts if n <= self.search_space.most_actors]
        else:
            counts = [self.start.actors]
        return [
            predict(
                Plan(actors=n, envs_per_actor=envs, segment_length=length),
                cost,
                self._learner(),
                self.task,
            )
            for (envs, length), cost in self._costs.items()
            for n in counts
        ]

    def _learner(self) -> LearnerCost:
        costs = self._learner_costs
        return LearnerCost(
            wall_s=statistics.median(cost.wall_s for cost in costs),
            cpu_s=statistics.median(cost.cpu_s for cost in costs),
        )

    def _cost_of(self, envs: int, length: int) -> ActorCost | None:
        plan = replace(self.start, actors=1, envs_per_actor=envs, segment_length=length)
        tried = self._try(plan, limited=False)
        if tried is None:
            return None
        self._costs[envs, length] = tried.trial.actor
        return tried.trial.actor

    def _try(
        self, plan: Plan, *, limited: bool, predicted: Prediction | None = None
    ) -> TrialRecord | None:
        """Run a plan, unless there is no time left or it cannot run."""
        longest_s = max((tried.trial.took_s for tried in self._tried), default=0.0)
        if self._tried and self.clock() - self._began_s + longest_s > self.budget_s:
            return None
        try:
            trial = self.run_plan(plan, limited=limited)
        except AsyncRLError as error:
            if not self._tried:
                raise
            # For example, a factory determines the number of environments itself, or too many
            # actors fail.
            self.on_failed(plan, error)
            return None
        tried = TrialRecord(plan=plan, limited=limited, trial=trial, predicted=predicted)
        self._tried.append(tried)
        self._learner_costs.append(trial.learner)
        self.on_tried(tried)
        return tried


def _measured(tried: TrialRecord) -> Prediction:
    """Return a trial in the form in which plans are compared."""
    return Prediction(
        plan=tried.plan,
        env_steps_per_s=tried.trial.env_steps_per_s,
        opt_steps_per_s=tried.trial.opt_steps_per_s,
        limited_by=tried.predicted.limited_by if tried.predicted else "cores",
    )
