"""The steady state of a run, from what one step costs on each side. Pure.

An environment step costs an actor `a` seconds. It brings `samples_per_insert / batch_size`
optimisation steps with it, which cost the learner `l` seconds and all its threads together `c`.
Then n actors on C cores make no more environment steps a second than

    n / a          all actors at work all the time
    1 / l          the learner at work all the time
    C / (a + c)    every core at work all the time

and the least of the three is what limits the run. With samples per insert off, nobody waits: if
there are more threads at work than cores, all of them get an equal part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["actors", "learner", "cores"]

_AS_GOOD = 0.95
"""A plan with this part of the best rate is as good, and better if it takes less."""

_MOST_TRANSITIONS = 4096
"""In one message: how far replay may run ahead of the learner grows with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be chosen."""

    actors: int
    envs_per_actor: int
    segment_length: int

    @property
    def is_light(self) -> bool:
        """Whether its messages are small enough, or could not be smaller."""
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
    """Seconds of one actor for one environment step, by what they go into."""

    policy_s: float
    env_s: float
    send_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.policy_s + self.env_s + self.send_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerCost:
    """Seconds for one optimisation step, with its batch and its part of publishing."""

    wall_s: float
    cpu_s: float
    """Of all threads of the process together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a plan is for."""

    cores: float
    """CPU seconds per second; a CPU quota may allow part of a core."""

    batch_size: int
    samples_per_insert: float
    """0 is off."""

    @property
    def opt_steps_per_env_step(self) -> float:
        """How often the learner may optimise for each environment step; 0 if that is not set."""
        return self.samples_per_insert / self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model expects of a plan."""

    plan: Plan
    env_steps_per_s: float
    opt_steps_per_s: float
    limited_by: Side

    @property
    def score(self) -> float:
        """What a better plan has more of; with a limiter, both rates rise together."""
        return self.env_steps_per_s * self.opt_steps_per_s


def predict(plan: Plan, actor: ActorCost, learner: LearnerCost, task: Task) -> Prediction:
    """Say how fast a plan will run, and which side will keep it from running faster."""
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
    """Return the plan that takes least among those that are as good as the best one.

    Fewer actors leave cores to others; fewer environments change least what is explored.
    """
    best = max(prediction.score for prediction in predictions)
    # Both rates are in a score: where they rise together, it is the square of a rate.
    good = [p for p in predictions if p.score >= _AS_GOOD**2 * best]
    return min(
        good,
        key=lambda p: (
            p.plan.actors,
            p.plan.envs_per_actor,
            p.plan.segment_length,
        ),
    )


def actor_counts(cores: float, also: Iterable[int] = ()) -> list[int]:
    """Return numbers of actors worth a thought: all small ones, then steps of a quarter."""
    counts, count = set(also), 1
    while count <= cores:
        counts.add(count)
        count += max(1, count // 4)
    return sorted(counts | {math.ceil(cores)})
