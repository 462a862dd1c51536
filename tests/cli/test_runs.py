"""`asyncrl runs`, `compare`, `report` and `plot`: what they print and draw of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from asyncrl.cli.main import main
from asyncrl.run.run_config import RunConfig
from tests.tools.report.runs import made_run


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
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"] == {"seed": [0, 7], "env": ["CartPole-v1", "Acrobot-v1"]}
    assert printed["numbers"]["wall_s"] == [5.0, 65.0]


def test_report_of_one_run_is_written_into_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(runs / "low")]) == 0
    page = runs / "low/report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert "<h1>low</h1>" in page.read_text()


@pytest.mark.parametrize("command", ["report", "plot"])
def test_records_that_cannot_be_read_are_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    run_dir = made_run(tmp_path / "run", RunConfig())
    records = run_dir / "metrics.jsonl"
    records.unlink(missing_ok=True)
    records.mkdir()  # also for root, who may read all files
    assert main([command, str(run_dir), "-o", str(tmp_path / "out.png")]) == 2
    error = f"asyncrl: error: cannot read {records}: Is a directory\n"
    assert capsys.readouterr().err == error


def test_curves_are_drawn_in_the_format_of_the_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    records = [
        {"env_steps": 10.0 * k, "opt_steps": 1.0 * k, "wall_s": 1.0 * k, "eval_reward": 2.0 * k}
        for k in range(4)
    ]
    made = [
        str(made_run(tmp_path / f"r{s}", replace(RunConfig(), seed=s), records=records))
        for s in range(2)
    ]
    for suffix, begins in {".png": b"\x89PNG", ".svg": b"<?xml"}.items():
        picture = tmp_path / f"curves{suffix}"
        assert main(["plot", *made, "-o", str(picture), "--axis", "wall_s"]) == 0
        assert capsys.readouterr().out == f"{picture}\n"
        assert picture.read_bytes().startswith(begins)
    at = [dict.fromkeys(records[0], 7.0)]  # the other run has no evaluation then
    apart = str(made_run(tmp_path / "r2", replace(RunConfig(), seed=2), records=at))
    assert main(["plot", made[0], apart, "-o", str(tmp_path / "x.svg"), "--axis", "wall_s"]) == 2
    assert "that differ only in their seed lie at no common time" in capsys.readouterr().err


def test_settings_that_cannot_be_read_are_named_with_their_file(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "low" / "config.yaml").write_text("env: [")
    assert main(["report", str(runs / "low")]) == 2
    assert f"cannot load {runs / 'low' / 'config.yaml'}: " in capsys.readouterr().err
    assert main(["runs", str(runs), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [Path(json.loads(line)["run"]).name for line in out.splitlines()] == ["high", "gone"]
    assert f"{runs / 'low'} is not listed: cannot load {runs / 'low' / 'config.yaml'}: " in err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("report", "RUN_DIR is missing"),
        ("compare {runs}/low", "at least 2 run"),
        ("compare {runs}/low {runs}/none", "not a run directory"),
        ("report {runs}/none", "not a run directory: it does not exist"),
        ("report {runs}/low -o {runs}", "cannot write {runs}: Is a directory"),
        ("plot {runs}/low -o curves.bmp", "curves.bmp; its ending must be one of .pdf, .png, .svg"),
        ("plot {runs}/low", "none of these runs has an evaluation yet"),
    ],
)
def test_what_cannot_be_drawn_or_compared_is_refused(
    command: str, error: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(command.format(runs=runs).split()) == 2
    assert error.format(runs=runs) in capsys.readouterr().err
