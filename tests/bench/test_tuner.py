"""The search, on machines that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncrl.bench.cost_model import ActorCost, Plan
from asyncrl.bench.trial import Trial
from asyncrl.bench.tuner import SearchSpace, TrialRecord, Tuner, Tuning
from asyncrl.core.errors import ActorFailed, AsyncRLError, ConfigError, OutOfMemory
from tests.bench.worlds import World, actor_cost

START = Plan(actors=2, envs_per_actor=16, segment_length=16)


def search(world: World, *, budget_s: float = 1000.0, start: Plan = START, **free: Any) -> Tuning:
    return Tuner(
        run_plan=world.run_plan,
        task=world.task,
        start=start,
        budget_s=budget_s,
        search_space=SearchSpace(**free),
        clock=world.clock,
    ).run()


def envs_tried(world: World) -> list[int]:
    return [plan.envs_per_actor for plan, limited in world.runs if not limited]


def test_fewest_actors_that_keep_the_learner_busy() -> None:
    world = World(opt_s=1e-3, samples_per_insert=4.0)  # the learner takes 64,000 steps/s
    tuning = search(world)
    assert tuning.chosen.actors == 1
    assert "1 actor keeps the learner busy" in tuning.sentence


def test_slow_environments_get_every_core_but_the_learners_part() -> None:
    world = World(cores=8, samples_per_insert=1.0, cost_of=actor_cost(env_s=1e-3))
    tuning = search(world)
    assert tuning.chosen.actors in {7, 8}
    found = tuning.of(tuning.chosen)
    assert found
    assert found.trial.env_steps_per_s > 0.95 * 7 / 1.1e-3


def test_dear_calls_of_the_policy_get_larger_batches() -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(call_s=2e-3))
    assert search(world).chosen.envs_per_actor >= 64


def test_batches_that_gain_nothing_stay_small() -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(call_s=1e-6, env_s=1e-4))
    assert search(world).chosen.envs_per_actor == 1
    assert envs_tried(world)[:2] == [16, 64], "more were tried first"


def test_slow_steps_are_not_put_together() -> None:
    world = World(cost_of=actor_cost(call_s=1.0, env_s=0.05))
    search(world)
    assert max(envs_tried(world)) == 16, "64 of them would take 7 seconds a step"


def test_dear_messages_get_longer_segments() -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(call_s=1e-6, message_s=2e-3))
    assert search(world).chosen.segment_length == 64


def test_cheap_messages_leave_the_segments_unchanged() -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(message_s=1e-6))
    assert search(world).chosen.segment_length == 16
    assert {plan.segment_length for plan, _ in world.runs} == {16}


def test_best_plans_are_verified_and_compared_with_the_start() -> None:
    world = World(cores=4, samples_per_insert=0.5)
    tuning = search(world)
    verified = [plan for plan, limited in world.runs if limited]
    assert START in verified
    assert 2 <= len(verified) <= 3
    assert tuning.chosen in verified
    best = max(tried.trial.env_steps_per_s for tried in tuning.tried if tried.limited)
    found = tuning.of(tuning.chosen)
    assert found
    assert found.trial.env_steps_per_s >= 0.95 * best
    assert f"measured {found.trial.env_steps_per_s:,.0f} env steps/s" in tuning.sentence


class Disappointing(World):
    """A machine on which nothing but the plan to begin with runs as well as expected."""

    def run_plan(self, plan: Plan, *, limited: bool) -> Trial:
        trial = super().run_plan(plan, limited=limited)
        if not limited or plan == START:
            return trial
        return replace(trial, env_steps_per_s=1.0, opt_steps_per_s=1.0)


def test_measurement_counts_more_than_the_model() -> None:
    tuning = search(Disappointing())
    assert tuning.chosen == START
    assert "no other plan that was tried is faster" in tuning.sentence


@pytest.mark.parametrize("budget_s", [0.0, 10.0, 20.0, 40.0])
def test_budget_is_kept(budget_s: float) -> None:
    world = World(took_s=4.0)
    tuning = search(world, budget_s=budget_s)
    assert tuning.took_s == world.now_s <= max(budget_s, 4.0)
    assert len(tuning.tried) == len(world.runs) >= 1


def test_without_time_to_verify_the_model_decides() -> None:
    tuning = search(World(took_s=4.0), budget_s=1.0)
    assert tuning.chosen.envs_per_actor == START.envs_per_actor
    assert "no time to verify it in a run" in tuning.sentence


@pytest.mark.parametrize(
    ("free", "name"),
    [("actors", "actors"), ("envs", "envs_per_actor"), ("length", "segment_length")],
)
def test_what_is_given_stays(free: str, name: str) -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(call_s=2e-3, message_s=2e-2))
    start = Plan(actors=3, envs_per_actor=6, segment_length=10)
    assert getattr(search(world, start=start).chosen, name) != getattr(start, name)
    assert getattr(search(world, start=start, **{free: False}).chosen, name) == getattr(start, name)


def test_actors_are_no_more_than_allowed() -> None:
    world = World(cores=8, samples_per_insert=1.0, cost_of=actor_cost(env_s=1e-3))
    assert search(world).chosen.actors > 3
    tuning = search(world, most_actors=3, start=replace(START, actors=1))
    assert tuning.chosen.actors == 3
    assert max(tried.plan.actors for tried in tuning.tried) == 3


def test_environments_are_no_more_than_allowed() -> None:
    world = World(samples_per_insert=0.1, cost_of=actor_cost(call_s=1.0e-2))
    search(world, most_envs=100)
    assert max(envs_tried(world)) == 64


class Fixed(World):
    """Its vector environment holds 16, whatever one asks for."""

    def run_plan(self, plan: Plan, *, limited: bool) -> Trial:
        if plan.envs_per_actor != 16:
            raise ConfigError("holds 16 environments")
        return super().run_plan(plan, limited=limited)


def test_numbers_that_cannot_be_had_are_passed_over() -> None:
    assert search(Fixed()).chosen.envs_per_actor == 16


@pytest.mark.parametrize("error", [ActorFailed("killed by SIGKILL"), OutOfMemory("none left")])
def test_plan_that_fails_is_skipped_and_reported(error: AsyncRLError) -> None:
    class Small(World):
        """Has memory for 16 environments."""

        def run_plan(self, plan: Plan, *, limited: bool) -> Trial:
            if plan.envs_per_actor > 16:
                raise error
            return super().run_plan(plan, limited=limited)

    world, reported = Small(cost_of=actor_cost(call_s=2e-3)), list[tuple[Plan, AsyncRLError]]()
    tuning = Tuner(
        run_plan=world.run_plan,
        task=world.task,
        start=START,
        budget_s=60.0,
        clock=world.clock,
        on_failed=lambda *failed: reported.append(failed),
    ).run()
    assert tuning.chosen.envs_per_actor == 16
    ((plan, why),) = reported
    assert (plan.envs_per_actor, why) == (64, error)


def test_start_that_cannot_be_run_is_an_error() -> None:
    with pytest.raises(ConfigError, match="holds 16"):
        search(Fixed(), start=replace(START, envs_per_actor=8))


def test_every_trial_is_reported_as_it_ends() -> None:
    world, reported = World(), list[TrialRecord]()
    tuning = Tuner(
        run_plan=world.run_plan,
        task=world.task,
        start=START,
        budget_s=1000.0,
        on_tried=reported.append,
        clock=world.clock,
    ).run()
    assert tuple(reported) == tuning.tried
    assert [(tried.plan, tried.limited) for tried in reported] == world.runs


def test_cost_of_a_step_is_the_sum_of_its_parts() -> None:
    assert ActorCost(policy_s=1.0, env_s=2.0, send_s=3.0).total_s == 6.0
