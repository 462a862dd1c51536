"""The model of the steady state, and the choice among its predictions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.bench.cost_model import (
    ActorCost,
    LearnerCost,
    Plan,
    Prediction,
    Side,
    Task,
    actor_counts,
    choose,
    predict,
)

ACTOR = ActorCost(policy_s=2e-6, env_s=6e-6, send_s=2e-6)  # 100,000 steps/s
LEARNER = LearnerCost(wall_s=1e-3, cpu_s=1e-3)


def plan(actors: int = 1, envs: int = 16, length: int = 16) -> Plan:
    return Plan(actors=actors, envs_per_actor=envs, segment_length=length)


def task(cores: int = 8, batch_size: int = 100, samples_per_insert: float = 1.0) -> Task:
    return Task(cores=cores, batch_size=batch_size, samples_per_insert=samples_per_insert)


def predicted(chosen: Plan, rate: float, opt_rate: float | None = None) -> Prediction:
    return Prediction(
        plan=chosen,
        env_steps_per_s=rate,
        opt_steps_per_s=rate if opt_rate is None else opt_rate,
        limited_by="actors",
    )


@pytest.mark.parametrize(
    ("actors", "cores", "samples_per_insert", "rate", "side"),
    [
        # The learner takes 10 us for each environment step and sample; an actor makes one in 10.
        (1, 8, 0.5, 100_000, "actors"),
        (3, 8, 0.2, 300_000, "actors"),
        (1, 8, 2.0, 50_000, "learner"),
        (4, 8, 1.0, 100_000, "learner"),
        (1, 1, 1.0, 50_000, "cores"),
        (2, 2, 0.5, 2 / 15e-6, "cores"),
        (8, 4, 0.2, 4 / 12e-6, "cores"),
    ],
)
def test_slowest_side_sets_the_pace(
    actors: int, cores: int, samples_per_insert: float, rate: float, side: Side
) -> None:
    work = task(cores, samples_per_insert=samples_per_insert)
    found = predict(plan(actors), ACTOR, LEARNER, work)
    assert found.env_steps_per_s == pytest.approx(rate)
    assert found.opt_steps_per_s == pytest.approx(rate * samples_per_insert / 100)
    assert found.limited_by == side


def test_threads_of_the_learner_take_cores_from_actors() -> None:
    fast = LearnerCost(wall_s=0.6e-3, cpu_s=1.8e-3)
    work = task(cores=2, samples_per_insert=0.9)
    assert predict(plan(1), ACTOR, LEARNER, work).limited_by == "actors"
    found = predict(plan(1), ACTOR, fast, work)
    assert found.limited_by == "cores"
    assert found.env_steps_per_s == pytest.approx(2 / 26.2e-6)


@pytest.mark.parametrize(
    ("actors", "cores", "part"), [(1, 2, 1.0), (2, 2, 2 / 3), (7, 8, 1.0), (8, 8, 8 / 9)]
)
def test_without_a_limiter_all_share_the_cores(actors: int, cores: int, part: float) -> None:
    found = predict(plan(actors), ACTOR, LEARNER, task(cores, samples_per_insert=0.0))
    assert found.env_steps_per_s == pytest.approx(part * actors * 100_000)
    assert found.opt_steps_per_s == pytest.approx(part * 1000)


@given(
    actors=st.integers(1, 64),
    cores=st.integers(1, 64),
    ratio=st.floats(0.01, 100),
    step_s=st.floats(1e-7, 1.0),
    opt_s=st.floats(1e-5, 1.0),
)
def test_no_side_gets_more_than_its_capacity(
    actors: int, cores: int, ratio: float, step_s: float, opt_s: float
) -> None:
    cost = ActorCost(policy_s=0.0, env_s=step_s, send_s=0.0)
    learner = LearnerCost(wall_s=opt_s, cpu_s=opt_s)
    found = predict(plan(actors), cost, learner, task(cores, samples_per_insert=ratio))
    most = 1 + 1e-9
    assert found.env_steps_per_s * step_s <= actors * most
    assert found.opt_steps_per_s * opt_s <= most
    assert found.env_steps_per_s * step_s + found.opt_steps_per_s * opt_s <= cores * most


def test_fewest_actors_that_keep_the_learner_busy_are_chosen() -> None:
    work = task(
        samples_per_insert=0.25
    )  # the learner takes 400,000 a second, an actor makes 100,000
    found = choose([predict(plan(n), ACTOR, LEARNER, work) for n in (1, 2, 3, 4, 5, 8)])
    assert (found.plan.actors, found.limited_by) == (4, "learner")


def test_without_a_limiter_the_learner_keeps_its_core() -> None:
    work = task(cores=4, samples_per_insert=0.0)
    found = choose([predict(plan(n), ACTOR, LEARNER, work) for n in (1, 2, 3, 4, 5)])
    assert found.plan.actors == 3


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([predicted(plan(2), 100.0)], plan(2)),
        ([predicted(plan(2), 100.0), predicted(plan(1), 96.0)], plan(1)),
        ([predicted(plan(2), 100.0), predicted(plan(1), 90.0)], plan(2)),
        ([predicted(plan(1, 64), 100.0), predicted(plan(1, 16), 98.0)], plan(1, 16)),
        ([predicted(plan(1, 64), 100.0), predicted(plan(2, 16), 98.0)], plan(1, 64)),
        ([predicted(plan(length=64), 100.0), predicted(plan(length=8), 97.0)], plan(length=8)),
        ([predicted(plan(1), 100.0, 5.0), predicted(plan(2), 100.0, 9.0)], plan(2)),
    ],
)
def test_as_good_with_less_is_better(others: list[Prediction], chosen: Plan) -> None:
    assert choose(others).plan == chosen
    assert choose(others[::-1]).plan == chosen


def test_counts_are_all_small_ones_and_up_to_the_cores() -> None:
    assert actor_counts(1) == [1]
    assert actor_counts(2) == [1, 2]
    assert actor_counts(0.5) == [1]
    assert actor_counts(1.5) == [1, 2]
    assert actor_counts(6) == [1, 2, 3, 4, 5, 6]
    assert actor_counts(2, also=[5]) == [1, 2, 5]
    many = actor_counts(100)
    assert (many[0], many[-1]) == (1, 100)
    assert len(many) < 25


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (plan(2, 64, 32), "2 actors of 64 environments (segments of 32)"),
        (plan(1, 1, 8), "1 actor of 1 environment (segments of 8)"),
    ],
)
def test_plan_has_a_readable_description(chosen: Plan, words: str) -> None:
    assert str(chosen) == words


def test_heavy_plans_are_reported() -> None:
    assert plan(envs=256, length=16).is_light
    assert not plan(envs=256, length=32).is_light
    assert plan(envs=1, length=10_000).is_light
