"""The learning benchmark: how runs are chosen, saved, continued and shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from benchmarks.learning.__main__ import run_pieces, show
from benchmarks.learning.pieces import Failed, Piece
from benchmarks.learning.runs import Run, keep, kept, of_same_settings
from benchmarks.learning.table import no_worse
from benchmarks.learning.tasks import CASES, TASKS, missing
from benchmarks.learning.training import ConsecutiveEvaluations

MACHINE = machine()


def a_run(name: str = "dqn/cartpole", mode: str = "async", seed: int = 0, **values: Any) -> Run:
    algorithm, _, task = name.partition("/")
    origin = {"date": "2030-01-02", "commit": "abc1234", "load_before": 0.5, "machine": MACHINE}
    given: dict[str, Any] = {
        "settings": {"mode": mode},
        "score": 490.0,
        "score_std": 5.0,
        "reached": True,
        "wall_s": 4.0,
        "env_steps": 1000,
        "origin": origin,
        "curve": [(500, 1.0, 20.0), (1000, 4.0, 480.0)],
        **values,
    }
    return Run(algorithm=algorithm, task=task, mode=mode, seed=seed, **given)


def a_piece(seed: int, **values: Any) -> Piece:
    given: dict[str, Any] = {
        "name": "dqn/cartpole",
        "mode": "async",
        "reason": "",
        "settings": lambda: {"seed": seed},
        "command": (sys.executable, "-c", f"print({RESULT!r})"),
        "limit_s": 60.0,
        **values,
    }
    return Piece(seed=seed, **given)


RESULT = json.dumps({"score": 3.0, "score_std": 0.0, "wall_s": 1.0, "env_steps": 7})


# --- tasks ---------------------------------------------------------------------------------------


def test_cases_can_be_run_or_say_what_is_missing():
    for case in CASES:
        if reason := missing(case):
            assert reason.endswith("missing")
            continue
        config = case.config(seed=3)
        assert (config.seed, config.env) == (3, TASKS[case.task].env)
        assert config.stop_at_return == TASKS[case.task].bar


# --- trainings -----------------------------------------------------------------------------------


def test_one_lucky_evaluation_ends_no_run():
    stop = ConsecutiveEvaluations(475.0)
    assert [bool(stop.update({"eval_reward": s})) for s in (480.0, 470.0, 475.0)] == [False] * 3
    assert not stop.update({"env_steps": 3.0})
    assert stop.update({"eval_reward": 500.0}) == "2 evaluations in a row reached 475"
    stop.reset()
    assert not stop.update({"eval_reward": 500.0})


# --- keeping and resuming -------------------------------------------------------------------------


def test_runs_come_back_as_they_were_kept(tmp_path: Path):
    first, second, other = a_run(), a_run(seed=1), a_run("sac/pendulum")
    for run in (first, second, other):
        keep(tmp_path, run)
    back = kept(tmp_path)
    assert [run.key for run in back] == [first.key, second.key, other.key]
    assert [list(point) for point in back[0].curve] == [list(point) for point in first.curve]
    again = a_run(score=1.0)
    keep(tmp_path, again)
    assert {run.key: run.score for run in kept(tmp_path)}[again.key] == 1.0
    assert len(kept(tmp_path)) == 3
    keep(tmp_path, a_run(score=2.0))
    assert [run.score for run in kept(tmp_path / "replaced")] == [first.score, 1.0]


def test_settings_that_are_new_or_gone_since_change_nothing():
    before = {"seed": 1, "agent": {"hidden": [64, 64]}}
    assert of_same_settings(before, {**before, "agent": {"hidden": [64, 64], "dueling": False}})
    assert not of_same_settings(before, {**before, "seed": 2})
    assert not of_same_settings(before, {**before, "agent": {"hidden": [64]}})
    assert of_same_settings({**before, "patience_s": 1.0}, before)


def test_what_is_done_is_not_done_again_unless_asked(tmp_path: Path):
    pieces = [a_piece(0), a_piece(1)]
    assert run_pieces(pieces[:1], tmp_path, again=False, budget_s=0.0) == 0
    path = next(tmp_path.iterdir())
    written = path.stat().st_mtime_ns
    assert run_pieces(pieces[:1], tmp_path, again=False, budget_s=0.0) == 0
    assert path.stat().st_mtime_ns == written
    assert run_pieces(pieces, tmp_path, again=True, budget_s=0.0) == 0
    assert [run.seed for run in kept(tmp_path)] == [0, 1]
    other = replace(pieces[0], settings=lambda: {"seed": 0.5})
    assert not other.done(kept(tmp_path))


def test_failed_run_is_reported_and_does_not_end_the_others(tmp_path: Path, capsys: Any):
    broken = replace(a_piece(0), command=(sys.executable, "-c", "raise SystemExit('why')"))
    absent = a_piece(2, reason="package missing")
    pieces = [broken, a_piece(1), absent]
    assert run_pieces(pieces, tmp_path, again=False, budget_s=0.0) == 1
    assert "why" in capsys.readouterr().err
    assert [run.seed for run in kept(tmp_path)] == [1]
    with pytest.raises(Failed, match=r"seed 0: .* failed"):
        broken.run()
    show(pieces, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "missing" in lines[0]
    assert "3.0" in lines[1]
    assert "package missing" in lines[2]


# --- what is shown -------------------------------------------------------------------------------


def test_worse_beyond_noise_is_worse():
    assert no_worse([100.0, 100.0], [100.0, 100.0], span=100.0)
    assert no_worse([99.0, 99.0], [100.0, 100.0], span=100.0), "within 2 % of the span"
    assert not no_worse([90.0, 91.0, 89.0], [100.0, 100.0, 100.0], span=100.0)
    assert no_worse([60.0, 100.0, 110.0], [100.0, 101.0, 99.0], span=100.0), "one seed's bad luck"
    assert no_worse([1.0], [100.0], span=1.0), "a single seed says nothing"
