"""The search, on machines that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncrl.core.errors import ActorFailed, AsyncRLError, ConfigError, OutOfMemory
from asyncrl.tools.bench.trial import Trial
from asyncrl.tools.bench.tuner import Plan, SearchSpace, Tuner, Tuning
from tests.tools.bench.worlds import World

START = Plan(actors=2, envs_per_actor=16, segment_length=16)
DEAR = {"samples_per_insert": 0.1, "call_s": 2e-3, "message_s": 2e-2}
"""Calls of the policy and messages cost more than environments."""


def search(world: World, *, budget_s: float = 1000.0, start: Plan = START, **free: Any) -> Tuning:
    return Tuner(
        run_plan=world.run_plan,
        start=start,
        budget_s=budget_s,
        search_space=SearchSpace(**free),
        clock=world.clock,
    ).run()


def plan(actors: int, envs: int, length: int = 16) -> Plan:
    return Plan(actors=actors, envs_per_actor=envs, segment_length=length)


@pytest.mark.parametrize(
    ("world", "chosen"),
    [
        pytest.param(World(), plan(1, 4), id="the learner is busy"),
        pytest.param(World(env_s=1e-3, samples_per_insert=1.0), plan(8, 1), id="slow environments"),
        pytest.param(World(sleep_s=1e-2, env_s=1e-5), plan(1024, 1), id="environments that wait"),
        pytest.param(World(**DEAR), plan(8, 64, 64), id="calls and messages cost much"),
        pytest.param(
            World(samples_per_insert=0.1, message_s=2e-2), plan(8, 1, 64), id="messages cost much"
        ),
    ],
)
def test_fewest_resources_that_are_about_the_fastest(world: World, chosen: Plan) -> None:
    tuning = search(world)
    assert tuning.chosen == chosen
    best = max(one.trial.rate for one in tuning.tried)
    (found,) = (one.trial for one in tuning.tried if one.plan == chosen)
    assert found.rate * 1.06 > best
    assert f"measured {found.env_steps_per_s:,.0f} env steps/s" in tuning.sentence
    assert f"with {START}" in tuning.sentence


def test_start_that_nothing_beats_is_kept() -> None:
    class Disappointing(World):
        def run_plan(self, plan: Plan) -> Trial:
            trial = super().run_plan(plan)
            return trial if plan == START else replace(trial, rate=1.0)

    tuning = search(Disappointing())
    assert tuning.chosen == START
    assert "no other plan that was tried is better" in tuning.sentence


def test_slow_steps_are_not_put_together() -> None:
    world = World(call_s=1.0, env_s=0.05)
    search(world, start=plan(1, 1))
    assert {plan.envs_per_actor for plan in world.runs} == {1}, "4 could take 4 s a step"


@pytest.mark.parametrize("budget_s", [0.0, 20.0])
def test_budget_is_kept(budget_s: float) -> None:
    world = World(took_s=4.0)
    tuning = search(world, budget_s=budget_s)
    assert tuning.took_s == world.now_s <= max(budget_s, 4.0)
    assert len(tuning.tried) == len(world.runs) >= 1


@pytest.mark.parametrize(
    ("free", "name"), [("envs", "envs_per_actor"), ("length", "segment_length")]
)
def test_what_is_given_stays(free: str, name: str) -> None:
    world, start = World(**DEAR), plan(3, 6, 10)
    assert any(getattr(one.plan, name) != getattr(start, name) for one in search(world).tried)
    kept = search(world, start=start, **{free: False})
    assert {getattr(one.plan, name) for one in kept.tried} == {getattr(start, name)}


def test_actors_and_environments_are_no_more_than_allowed() -> None:
    world = World(samples_per_insert=0.1, call_s=1e-2)
    search(world, most_actors=3, most_envs=100)
    assert max(plan.actors for plan in world.runs) == 3
    assert max(plan.envs_per_actor for plan in world.runs) == 100


@pytest.mark.parametrize(
    "error", [ConfigError("holds 16"), ActorFailed("killed by SIGKILL"), OutOfMemory("none left")]
)
def test_plan_that_fails_is_skipped_and_reported(error: AsyncRLError) -> None:
    class Small(World):
        def run_plan(self, plan: Plan) -> Trial:
            if plan.envs_per_actor != 16:
                raise error
            return super().run_plan(plan)

    world, failed = Small(call_s=2e-3), list[tuple[Plan, AsyncRLError]]()
    tuner = Tuner(
        run_plan=world.run_plan,
        start=START,
        budget_s=60.0,
        clock=world.clock,
        on_failed=lambda *one: failed.append(one),
    )
    tuning = tuner.run()
    assert tuning.chosen == plan(8, 16)
    assert failed == [(plan(1, 1), error)]
    with pytest.raises(type(error)):  # which cannot be improved on
        search(world, start=plan(1, 8))
