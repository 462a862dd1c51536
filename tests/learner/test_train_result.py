"""What a result reports about its run beyond its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.verdict import Setup


def result(**more: Any) -> TrainResult:
    values: dict[str, Any] = {
        "stop_reason": "enough",
        "wall_s": 20.0,
        "env_steps": 4000,
        "opt_steps": 100,
        "best_score": None,
        "best_opt_steps": None,
        "last_score": None,
        "seconds_to_stop_bar": None,
        "start_up_s": 2.0,
        "setup": Setup(actors=4, envs_per_actor=8, samples_per_insert=4.0, cores=8),
        "learner_shares": {"opt": 1.0, "wait": 0.0},
        "actor_shares": {"env": 0.5, "wait": 0.5},
        "actors": {"0": {"restarts": 0}, "1": {"restarts": 1}},
    }
    return TrainResult(**(values | more))


def test_verdict_is_about_the_whole_run() -> None:
    kind, sentence = result().verdict
    assert kind == "learner-bound"
    assert "actors wait 50 %" in sentence
    assert "2 actors would do" in sentence
    assert "optimises 100 %" in sentence


def test_part_before_a_run_was_resumed_is_no_time_to_judge() -> None:
    short = result(wall_s=520.0, resumed_at_s=500.0, start_up_s=12.0, end_s=7.0)
    assert "learned for 1.0 s after 12.0 s of start-up" in short.verdict.sentence


def test_curve_has_a_point_for_each_evaluation() -> None:
    pytest.importorskip("matplotlib")
    points = [{"env_steps": 100.0 * k, "opt_steps": 10.0 * k, "eval_reward": k} for k in (1.0, 3.0)]
    offline = [{**point, "env_steps": 0.0} for point in points]
    for evaluations, axis, steps in ((points, "env_steps", 100), (offline, "opt_steps", 10)):
        (axes,) = result(evaluations=evaluations).plot().axes
        (line,) = axes.lines
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([steps, 3 * steps], [1.0, 3.0])
        assert axes.get_xlabel() == axis
    with pytest.raises(ConfigError, match=r"'steps'.* env_steps"):
        result(evaluations=points).plot("steps")


def test_no_curve_without_evaluations() -> None:
    with pytest.raises(ConfigError, match=r"not evaluated.* set evaluate\.interval_opt_steps"):
        result().plot()
