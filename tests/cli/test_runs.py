"""`asyncrl runs` and `asyncrl compare`: what they print about runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from asyncrl.cli.compare import differences
from asyncrl.cli.main import main
from asyncrl.training.run_config import RunConfig
from tests.report.runs import made_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    low = {"best_score": 10.0, "opt_steps": 1000, "wall_s": 5.0}
    made_run(tmp_path / "low", RunConfig(), summary=low)
    other = replace(RunConfig(), env="Acrobot-v1", seed=7)
    high = {"best_score": 20.0, "opt_steps": 500, "wall_s": 65.0}
    made_run(tmp_path / "high", other, summary=high, began="2026-11-24T12:00:00+0000")
    made_run(tmp_path / "gone", RunConfig(), began="2026-11-25T12:00:00+0000")
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["runs", *words, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [Path(json.loads(line)["run"]).name for line in lines]


def test_runs_are_filtered_and_sorted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, str(runs)) == ["low", "high", "gone"]
    assert listed(capsys, str(runs), "--sort", "score") == ["high", "low", "gone"]
    assert listed(capsys, str(runs), "--sort", "time") == ["high", "low", "gone"]
    assert listed(capsys, str(runs), "--state", "killed") == ["gone"]
    assert listed(capsys, str(runs), "--env", "Acro") == ["high"]
    assert listed(capsys, str(runs), "--agent", "sac") == []


def test_the_table_has_a_whole_row_for_each_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(runs)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "agent", "env", "state"]
    assert rows[1].split()[:6] == [str(runs / "high"), "dqn", "Acrobot-v1", "ended", "20.00", "500"]
    assert main(["runs", str(runs), "--env", "none"]) == 0
    assert "no such run" in capsys.readouterr().out


def test_two_runs_are_compared_with_the_settings_that_differ(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs / "low"), str(runs / "high")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["best", "score", "10.00", "20.00"] in rows
    assert ["env", "CartPole-v1", "Acrobot-v1"] in rows
    assert ["seed", "0", "7"] in rows
    assert main(["compare", str(runs / "low"), str(runs / "high"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"] == {"seed": [0, 7], "env": ["CartPole-v1", "Acrobot-v1"]}
    assert told["numbers"]["wall_s"] == [5.0, 65.0]


def test_settings_that_one_lacks_differ() -> None:
    found = differences([{"a": {"b": 1, "c": []}, "d": {}}, {"a": {"b": 1}, "d": {}}])
    assert found == {"a.c": [[], None]}


def test_what_is_no_run_and_one_run_alone_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs / "low"), str(runs / "none")]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert main(["compare", str(runs / "low")]) == 2
    assert "at least 2 run" in capsys.readouterr().err
