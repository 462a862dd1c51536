"""Predicts the steady-state speed of a run from the cost of one step on each side. Pure.

An environment step costs an actor `a` seconds. It entails `samples_per_insert / batch_size`
optimisation steps, which take the learner `l` seconds and `c` seconds of CPU time in all of its
threads. Then n actors on C cores make at most this number of environment steps per second:

    n / a          all actors are always busy
    1 / l          the learner is always busy
    C / (a + c)    all cores are always busy

The smallest of the three limits the run. With samples per insert off, neither side waits: if there
are more busy threads than cores, all get an equal share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["actors", "learner", "cores"]

_TOLERANCE = 0.95
"""A plan with this share of the best rate counts as equally fast; the one with fewer resources
wins."""

_MOST_TRANSITIONS = 4096
"""Maximum in one message: how far replay may run ahead of the learner grows with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings to choose."""

    actors: int
    envs_per_actor: int
    segment_length: int

    @property
    def is_light(self) -> bool:
        """Whether its messages are small enough, or cannot be smaller."""
        rows = self.envs_per_actor * self.segment_length
        return rows <= _MOST_TRANSITIONS or self.envs_per_actor == 1

    def __str__(self) -> str:
        actors = "1 actor" if self.actors == 1 else f"{self.actors} actors"
        environments = "environment" if self.envs_per_actor == 1 else "environments"
        return (
            f"{actors} of {self.envs_per_actor} {environments} (segments of {self.segment_length})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCost:
    """Seconds of an actor per environment step, by activity."""

    policy_s: float
    env_s: float
    send_s: float

    @property
    def total_s(self) -> float:
        """The sum."""
        return self.policy_s + self.env_s + self.send_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerCost:
    """Seconds per optimisation step, including its batch and its share of publishing."""

    wall_s: float
    cpu_s: float
    """CPU seconds in all threads of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The machine and the algorithm that a plan is chosen for."""

    cores: float
    """CPU seconds per second; a CPU quota may allow part of a core."""

    batch_size: int
    samples_per_insert: float
    """0 is off."""

    @property
    def opt_steps_per_env_step(self) -> float:
        """Optimisation steps per environment step that the limiter allows; 0 if it is off."""
        return self.samples_per_insert / self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted speed of a plan."""

    plan: Plan
    env_steps_per_s: float
    opt_steps_per_s: float
    limited_by: Side

    @property
    def score(self) -> float:
        """Measure by which plans are compared; with a limiter, both rates rise together."""
        return self.env_steps_per_s * self.opt_steps_per_s


def predict(plan: Plan, actor: ActorCost, learner: LearnerCost, task: Task) -> Prediction:
    """Predict how fast a plan will run, and which side limits it."""
    if not task.samples_per_insert:
        return _predict_free(plan, actor, learner, task)
    ratio = task.opt_steps_per_env_step
    limits: dict[Side, float] = {
        "learner": 1 / (ratio * learner.wall_s),
        "actors": plan.actors / actor.total_s,
        "cores": task.cores / (actor.total_s + ratio * learner.cpu_s),
    }
    side = min(limits, key=lambda name: limits[name])
    return Prediction(
        plan=plan,
        env_steps_per_s=limits[side],
        opt_steps_per_s=limits[side] * ratio,
        limited_by=side,
    )


def _predict_free(plan: Plan, actor: ActorCost, learner: LearnerCost, task: Task) -> Prediction:
    wanted = plan.actors + learner.cpu_s / learner.wall_s
    part = min(1.0, task.cores / wanted)
    return Prediction(
        plan=plan,
        env_steps_per_s=part * plan.actors / actor.total_s,
        opt_steps_per_s=part / learner.wall_s,
        limited_by="actors" if part == 1.0 else "cores",
    )


def choose(predictions: Sequence[Prediction]) -> Prediction:
    """Return the plan with the fewest resources among those that are about as fast as the best.

    Fewer actors leave cores to other programs; fewer environments change exploration least.
    """
    best = max(prediction.score for prediction in predictions)
    # A score contains both rates: where they rise together, it is the square of a rate.
    good = [p for p in predictions if p.score >= _TOLERANCE**2 * best]
    return min(
        good,
        key=lambda p: (
            p.plan.actors,
            p.plan.envs_per_actor,
            p.plan.segment_length,
        ),
    )


def actor_counts(cores: float, also: Iterable[int] = ()) -> list[int]:
    """Return the numbers of actors to consider: all small ones, then steps of a quarter."""
    counts, count = set(also), 1
    while count <= cores:
        counts.add(count)
        count += max(1, count // 4)
    return sorted(counts | {math.ceil(cores)})
