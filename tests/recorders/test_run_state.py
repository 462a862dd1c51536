"""What follows from a run's records."""

from __future__ import annotations

import pytest

from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.run_state import RunState

LEARNING = {"wall_s": 10.0, "opt_steps": 100.0, "share/learner_opt": 1.0}


def state(**limits: float) -> RunState:
    return RunState(limits, None)


def test_values_stay_until_a_record_has_new_ones() -> None:
    run = state()
    run.update({"eval_reward": 5.0, "fps": 1.0})
    run.update({"fps": 2.0})
    assert run.values == {"eval_reward": 5.0, "fps": 2.0}


def test_progress_is_that_of_the_nearest_limit() -> None:
    run = state(env_steps=1000, opt_steps=100)
    run.update({"env_steps": 100.0, "opt_steps": 30.0})
    assert run.fraction == 0.3


def test_progress_beyond_a_limit_is_all() -> None:
    run = state(env_steps=1000)
    run.update({"env_steps": 1050.0})
    assert run.fraction == 1.0


def test_run_without_limits_has_no_progress() -> None:
    run = state()
    run.update({"env_steps": 100.0})
    assert (run.fraction, run.eta_s) == (None, None)


def test_end_is_expected_at_the_limit_that_comes_first() -> None:
    run = state(env_steps=1000, opt_steps=100)
    run.update({"wall_s": 10.0, "env_steps": 100.0, "opt_steps": 0.0})
    run.update({"wall_s": 12.0, "env_steps": 300.0, "opt_steps": 50.0})
    assert run.eta_s == pytest.approx(2.0)  # 50 opt steps at 25 a second; env steps need 7 s


def test_end_is_unknown_while_nothing_moves() -> None:
    run = state(env_steps=1000)
    for wall_s in (1.0, 2.0):
        run.update({"wall_s": wall_s, "env_steps": 0.0})
    assert run.eta_s is None


def test_pace_is_that_of_the_last_records() -> None:
    run = state(env_steps=10_000)
    for second in range(100):
        run.update({"wall_s": float(second), "env_steps": 1.0 * second})
    for second in range(100, 200):
        run.update({"wall_s": float(second), "env_steps": 100.0 + 10 * (second - 100)})
    assert run.eta_s == pytest.approx((10_000 - 1090) / 10)


def test_shares_of_two_records_are_not_mixed() -> None:
    run = state()
    run.update({"share/learner_eval": 0.6, "share/learner_opt": 0.4, "share/actor_env": 1.0})
    run.update({"share/learner_opt": 1.0})
    assert dict(run.shares("share/learner_")) == {"eval": 0.0, "opt": 1.0}
    assert dict(run.shares("share/actor_")) == {"env": 1.0}


def test_phase_that_never_took_time_is_left_out() -> None:
    run = state()
    run.update({"share/learner_opt": 1.0, "share/learner_save": 0.0})
    assert dict(run.shares("share/learner_")) == {"opt": 1.0}


def test_phases_have_one_order_whenever_they_appear() -> None:
    run = state()
    run.update({"share/learner_odd": 0.1, "share/learner_save": 0.4, "share/learner_opt": 0.5})
    run.update({"share/learner_opt": 0.2, "share/learner_wait": 0.8})
    assert [name for name, _ in run.shares("share/learner_")] == ["wait", "opt", "save", "odd"]


def test_end_shows_means_over_the_whole_run() -> None:
    run = state()
    run.update({"wall_s": 8.0, "share/learner_opt": 1.0, "system/cpu_percent": 90.0})
    run.update({"wall_s": 9.0, "eval_reward": 5.0})
    run.update(
        {
            "wall_s": 10.0,
            "env_steps": 500.0,
            "opt_steps": 40.0,
            "fps": 1.0,
            "opt_steps_per_sec": 0.0,
            "share/learner_wait": 1.0,
            "system/cpu_percent": 40.0,
        }
    )
    assert dict(run.shares("share/learner_")) == {"wait": 1.0, "opt": 0.0}
    run.finish("done")
    assert run.ended == "done"
    assert (run.values["fps"], run.values["opt_steps_per_sec"]) == (50.0, 4.0)
    assert dict(run.shares("share/learner_")) == pytest.approx({"wait": 0.2, "opt": 0.8})
    assert run.values["system/cpu_percent"] == pytest.approx(80.0)
    assert run.values["eval_reward"] == 5.0, "not a mean of anything"


def test_end_of_a_resumed_run_shows_means_over_the_time_since_then() -> None:
    run = state()
    run.resume_at(env_steps=400, opt_steps=30)
    assert run.values == {"env_steps": 400.0, "opt_steps": 30.0}
    run.update({"wall_s": 3601.0, "share/learner_wait": 1.0})  # mostly the start-up
    run.update({"wall_s": 3603.0, "share/learner_wait": 0.5, "share/learner_opt": 0.5})
    run.update({"wall_s": 3605.0, "share/learner_opt": 1.0})
    run.finish("done")
    shares = dict(run.shares("share/learner_"))
    assert shares == pytest.approx({"wait": 0.25, "opt": 0.75}, abs=1e-3)


def test_end_of_a_new_run_counts_its_start() -> None:
    run = state()
    run.resume_at(env_steps=0, opt_steps=0)
    run.update({"wall_s": 60.0, "share/learner_wait": 1.0})
    run.update({"wall_s": 80.0, "share/learner_opt": 1.0})
    run.finish("done")
    shares = dict(run.shares("share/learner_"))
    assert shares == pytest.approx({"wait": 0.75, "opt": 0.25}, abs=1e-3)


def test_end_of_a_run_without_records_is_quiet() -> None:
    run = state()
    run.finish("failed")
    assert run.values == {}


def test_verdict_is_about_the_newest_record() -> None:
    run = RunState({}, None, Setup(actors=2, samples_per_insert=4.0, cores=8))
    assert run.verdict is None
    run.update(LEARNING | {"share/actor_env": 0.4, "share/actor_wait": 0.6})
    assert run.verdict
    assert run.verdict.kind == "learner-bound"
    run.update(LEARNING | {"wall_s": 11.0, "share/actor_env": 1.0})
    assert run.verdict.kind == "balanced"


def test_verdict_needs_no_setup() -> None:
    run = state()
    shares = {"share/actor_env": 0.4, "share/actor_wait": 0.6}
    run.update(LEARNING | shares | {"actor/0/env_steps": 5.0, "actor/1/env_steps": 5.0})
    assert run.verdict
    assert "1 actor would do" in run.verdict.sentence


def test_learner_that_acts_waits_for_no_actor() -> None:
    run = state()
    run.update(
        LEARNING | {"share/learner_act": 0.5, "share/actor_env": 1.0, "actor/0/env_steps": 1}
    )
    assert run.verdict
    assert run.verdict.kind == "alone"


def test_actors_are_listed_by_slot() -> None:
    run = state()
    run.update({f"actor/{slot}/env_steps": float(slot) for slot in (10, 2, 1)})
    assert list(run.actors().items()) == [
        ("1", {"env_steps": 1.0}),
        ("2", {"env_steps": 2.0}),
        ("10", {"env_steps": 10.0}),
    ]


def test_actor_is_idle_since_its_last_step() -> None:
    run = state()
    run.update({"wall_s": 10.0, "actor/0/env_steps": 5.0, "actor/1/env_steps": 5.0})
    run.update({"wall_s": 13.0, "actor/0/env_steps": 6.0, "actor/1/env_steps": 5.0})
    run.update({"wall_s": 20.0})
    assert (run.idle_s("0"), run.idle_s("1")) == (7.0, 10.0)
