"""The learning benchmark: how runs are chosen, saved, continued and shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from benchmarks.common import FIRST_SEED
from benchmarks.learning import freshness
from benchmarks.learning.__main__ import main, run_pieces, show
from benchmarks.learning.offline import OFFLINE_CASES
from benchmarks.learning.pieces import Failed, Piece, pieces_of_cases
from benchmarks.learning.runs import Run, keep, kept, of_same_settings
from benchmarks.learning.table import no_worse
from benchmarks.learning.tasks import CASES, TASKS, case_of, missing
from benchmarks.learning.training import ConsecutiveEvaluations, sync_config

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


def test_cases_are_of_tasks_and_each_is_there_once():
    assert {case.task for case in CASES} <= set(TASKS)
    assert len({case.name for case in CASES}) == len(CASES)
    assert case_of("dqn/cartpole").algorithm == "dqn"
    with pytest.raises(ValueError, match="there is no dqn/chess; there are dqn/cartpole"):
        case_of("dqn/chess")


def test_cases_can_be_run_or_say_what_is_missing():
    for case in CASES:
        if reason := missing(case):
            assert reason.endswith("missing")
            continue
        config = case.config(seed=3)
        assert (config.seed, config.env) == (3, TASKS[case.task].env)
        assert config.stop_at_return == TASKS[case.task].bar
        assert sync_config(config).trainer.batch_size == config.trainer.batch_size


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


def test_no_run_begins_once_the_seconds_are_over(tmp_path: Path, capsys: Any):
    pieces = [a_piece(seed) for seed in range(3)]
    assert run_pieces(pieces, tmp_path, again=False, budget_s=1e-9) == 0
    assert not kept(tmp_path)
    assert "the next call begins with dqn/cartpole, async, seed 0" in capsys.readouterr().err


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


def test_pieces_begin_with_one_seed_of_everything():
    pieces = pieces_of_cases()
    n = len(CASES) + len(OFFLINE_CASES)
    assert {p.name for p in pieces[:n]} == {case.name for case in (*CASES, *OFFLINE_CASES)}
    assert {p.seed for p in pieces[:n]} == {FIRST_SEED}
    seeds = {name: {p.seed for p in pieces if p.name == name} for name in ("dqn/pong", "dqn/taxi")}
    assert {name: len(of_name) for name, of_name in seeds.items()} == {
        "dqn/pong": 5,
        "dqn/taxi": 10,
    }
    assert {(p.mode, p.seed) for p in pieces_of_cases(seeds=1)} == {
        (mode, FIRST_SEED) for mode in ("async", "sync", "offline")
    }


@pytest.mark.slow
@pytest.mark.processes
def test_cheap_case_is_trained_and_gone_on_with(tmp_path: Path, capsys: Any):
    arguments = ["--only", "dqn/cartpole", "--seeds", "1", "--max-env-steps", "3000"]
    arguments += ["--results", str(tmp_path)]
    assert main([*arguments, "--seconds-budget", "1"]) == 0
    (first,) = kept(tmp_path)
    assert (first.mode, first.origin["machine"]["cores"] > 0) == ("async", True)
    assert first.env_steps >= 3000
    assert 8.0 <= first.score <= 500.0
    assert first.lag_opt_steps is not None
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "dqn/cartpole, sync, seed 100" in said
    assert "dqn/cartpole, async, seed 100" not in said
    sync = kept(tmp_path)[1]
    assert (sync.mode, sync.env_steps) == ("sync", 3008)
    assert [score for _, _, score in sync.curve]
    assert sync.lag_opt_steps is None


# --- what is shown -------------------------------------------------------------------------------


def test_worse_beyond_noise_is_worse():
    assert no_worse([100.0, 100.0], [100.0, 100.0], span=100.0)
    assert no_worse([99.0, 99.0], [100.0, 100.0], span=100.0), "within 2 % of the span"
    assert not no_worse([90.0, 91.0, 89.0], [100.0, 100.0, 100.0], span=100.0)
    assert no_worse([60.0, 100.0, 110.0], [100.0, 101.0, 99.0], span=100.0), "one seed's bad luck"
    assert no_worse([1.0], [100.0], span=1.0), "a single seed says nothing"


def a_row(mode: str, seed: int, *returns: float) -> freshness.Row:
    lag = 3.0 if mode == "async" else None
    return {
        "case": "sac/pendulum",
        "mode": mode,
        "actors": 2,
        "seed": seed,
        "returns": {str(k): score for k, score in enumerate(returns)},
        "lag_at_insert_mean": lag,
        "lag_at_insert_max": lag,
        "origin": {"commit": "abc1234", "machine": MACHINE},
    }


def test_learning_of_both_modes_is_compared_on_a_scale_from_random_to_the_bar() -> None:
    task = TASKS["pendulum"]
    half = (task.random + task.bar) / 2
    rows = [a_row("sync", seed, task.random, task.bar) for seed in (100, 101)]
    rows += [a_row("async", seed, task.random, half) for seed in (100, 101)]
    assert freshness.normalised(rows[0]) == (1.0, 0.5)
    table = freshness.render(rows)
    same = "{0} ({0} to {0})".format
    cells = [same("1.00"), same("0.50"), same("0.50"), same("0.50"), same("0.25"), same("0.50")]
    assert f"| 2 | 2 | {' | '.join(cells)} | 3.0, at most 3 |" in table
    assert "abc1234" in table
    assert "sac/pendulum" not in freshness.render(rows[:2]), "there is nothing to compare with"
