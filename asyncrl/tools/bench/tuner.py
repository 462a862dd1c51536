"""The search: multiplies settings while short runs become faster. Starts no run itself.

Its only access to runs is a function that takes a plan and returns the result of a short run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.types import MOST_ACTORS
from asyncrl.tools.bench.trial import Trial

_GAIN = 1.05
"""Ratio from which a rate counts as higher. Among equally fast plans, the one with fewer resources
wins."""

_ENVS_STEP = 4
_MOST_ENVS = 256
_MOST_LENGTH = 64
_MOST_TRANSITIONS = 4096
"""Maximum in one message: how far replay may run ahead of the learner grows with it."""

_SLOW_STEP_S = 0.5
"""A batch of environments whose step takes longer would hardly have started within a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings to choose."""

    actors: int
    envs_per_actor: int
    segment_length: int

    def __str__(self) -> str:
        actors = "1 actor" if self.actors == 1 else f"{self.actors} actors"
        environments = "environment" if self.envs_per_actor == 1 else "environments"
        return (
            f"{actors} of {self.envs_per_actor} {environments} (segments of {self.segment_length})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The settings that the search may change, beside the number of actors."""

    envs: bool = True
    length: bool = True
    most_actors: int = MOST_ACTORS
    most_envs: int = _MOST_ENVS
    """Maximum environments per actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One short run."""

    plan: Plan
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All trials and the choice."""

    start: Plan
    chosen: Plan
    tried: tuple[TrialRecord, ...]
    took_s: float

    @property
    def sentence(self) -> str:
        """The choice and the measurement behind it."""
        rates = {one.plan: f"{one.trial.env_steps_per_s:,.0f}" for one in self.tried}
        against = f" against {rates[self.start]} with {self.start}"
        if self.chosen == self.start:
            against = ", and no other plan that was tried is better"
        return f"chose {self.chosen}: measured {rates[self.chosen]} env steps/s{against}"


@dataclass
class Tuner:
    """Tries plans within a time budget, and chooses one.

    Args:
        run_plan: Runs a plan for a short time; raises `AsyncRLError` if it cannot run.
        start: The plan to improve on.
        budget_s: Time budget. Trials that would probably exceed it are skipped, but for the first.
        search_space: The settings that may change.
        on_tried: Called after each trial.
        on_failed: Called for each plan that could not run, with the error, once another one could.
        clock: Returns the time.
    """

    run_plan: Callable[[Plan], Trial]
    start: Plan
    budget_s: float
    search_space: SearchSpace = field(default_factory=SearchSpace)
    on_tried: Callable[[TrialRecord], object] = lambda _: None
    on_failed: Callable[[Plan, AsyncRLError], object] = lambda _plan, _error: None
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Tuning:
        """Find the environments of one actor, then the number of actors, then the length."""
        self._began_s = self.clock()
        self._tried: dict[Plan, Trial | None] = {}
        self._trial(self.start)
        plan, space = replace(self.start, actors=1), self.search_space
        one = replace(plan, envs_per_actor=1)
        if space.envs and self._trial(one):
            most = min(space.most_envs, _MOST_TRANSITIONS // plan.segment_length)
            plan = self._walk(one, "envs_per_actor", _ENVS_STEP, most)
        plan = self._walk(plan, "actors", 2, space.most_actors)
        if space.length:
            most = min(_MOST_LENGTH, _MOST_TRANSITIONS // plan.envs_per_actor)
            self._walk(plan, "segment_length", 2, most)
        return Tuning(
            start=self.start,
            chosen=self._chosen(),
            tried=tuple(TrialRecord(plan=p, trial=t) for p, t in self._tried.items() if t),
            took_s=self.clock() - self._began_s,
        )

    def _walk(self, plan: Plan, name: str, factor: int, most: int) -> Plan:
        """Multiply a setting while that makes runs faster; return the last plan that did."""
        trial = self._trial(plan)
        while trial and (value := min(factor * getattr(plan, name), most)) > getattr(plan, name):
            if name == "envs_per_actor" and value > trial.env_steps_per_s * _SLOW_STEP_S:
                break
            following = replace(plan, **{name: value})
            faster = self._trial(following)
            if not faster or faster.rate < _GAIN * trial.rate:
                break
            plan, trial = following, faster
        return plan

    def _trial(self, plan: Plan) -> Trial | None:
        """Return the trial of a plan; None if it cannot run or there is no time left."""
        if plan not in self._tried:
            self._tried[plan] = self._try(plan)
        return self._tried[plan]

    def _try(self, plan: Plan) -> Trial | None:
        longest_s = max((trial.took_s for trial in self._tried.values() if trial), default=0.0)
        if self._tried and self.clock() - self._began_s + longest_s > self.budget_s:
            return None
        try:
            trial = self.run_plan(plan)
        except AsyncRLError as error:
            if not self._tried:
                raise
            # For example, a factory determines the number of environments itself, or too many
            # actors fail.
            self.on_failed(plan, error)
            return None
        self.on_tried(TrialRecord(plan=plan, trial=trial))
        return trial

    def _chosen(self) -> Plan:
        """Return the plan with the fewest resources among those that are about the fastest.

        Fewer actors leave cores to other programs; fewer environments change exploration least.
        """
        rates = {plan: trial.rate for plan, trial in self._tried.items() if trial}
        good = [plan for plan, rate in rates.items() if rate * _GAIN >= max(rates.values())]
        return min(good, key=lambda p: (p.actors, p.envs_per_actor, p.segment_length))
