"""What follows from a run's records."""

from __future__ import annotations

import pytest

from asyncrl.recorders.run_state import RunState


def state(**limits: float) -> RunState:
    return RunState(limits, None)


def test_pace_is_that_of_the_last_records() -> None:
    run = state(env_steps=10_000)
    for second in range(100):
        run.update({"wall_s": float(second), "env_steps": 1.0 * second})
    for second in range(100, 200):
        run.update({"wall_s": float(second), "env_steps": 100.0 + 10 * (second - 100)})
    assert run.eta_s == pytest.approx((10_000 - 1090) / 10)


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
