"""What a run directory says about its run, also if files are missing or cut off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.run.run_config import RunConfig
from asyncrl.tools.report.run_files import RunFiles, find_runs
from tests.tools.report.runs import made_run

RECORDS = [{"wall_s": 1.0, "opt_steps": 10.0, "eval/best": 7.0}, {"wall_s": 2.0, "opt_steps": 20.0}]
SUMMARY = {"best_score": 9.0, "opt_steps": 30, "wall_s": 3.0}


def test_a_run_that_ended_is_read_from_its_summary(tmp_path: Path) -> None:
    run = RunFiles(made_run(tmp_path / "a", RunConfig(), records=RECORDS, summary=SUMMARY))
    assert (run.state, run.agent, run.env) == ("ended", "dqn", "CartPole-v1")
    assert (run.score, run.number("opt_steps"), run.number("wall_s")) == (9.0, 30.0, 3.0)


def test_a_killed_run_is_read_from_its_last_whole_records(tmp_path: Path) -> None:
    path = made_run(tmp_path / "a", RunConfig(), records=RECORDS)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"opt_steps": 9')
    run = RunFiles(path)
    assert (run.state, run.score, run.number("opt_steps")) == ("killed", 7.0, 20.0)


def test_a_resumed_run_is_not_described_by_the_summary_of_before(tmp_path: Path) -> None:
    path = made_run(tmp_path / "a", RunConfig(), records=RECORDS, summary=SUMMARY)
    starts = json.loads((path / "run.json").read_text())["starts"]
    (path / "run.json").write_text(json.dumps({"starts": [*starts, starts[0]]}))
    assert RunFiles(path).state == "killed"
    assert RunFiles(path).number("opt_steps") == 20.0


def test_only_an_error_since_the_last_start_makes_a_run_failed(tmp_path: Path) -> None:
    path = made_run(tmp_path / "a", RunConfig())
    (path / "error.txt").write_text("Traceback")
    os.utime(path / "error.txt", (0, 0))
    assert RunFiles(path).state == "killed"
    os.utime(path / "error.txt")
    assert RunFiles(path).state == "failed"


def test_lock_is_checked_on_its_own_host_only(tmp_path: Path) -> None:
    other = RunFiles(made_run(tmp_path / "a", RunConfig(), host="another"))
    mine = RunFiles(made_run(tmp_path / "b", RunConfig(), pid=os.getpid()))
    assert other.state == "elsewhere"
    command = Path(f"/proc/{os.getpid()}/cmdline").read_bytes()
    assert mine.state == ("running" if b"asyncrl" in command else "killed")


def test_a_directory_with_a_config_alone_is_read_too(tmp_path: Path) -> None:
    path = made_run(tmp_path / "a", RunConfig())
    for name in ("run.json", "metrics.jsonl"):
        (path / name).unlink()
    run = RunFiles(path)
    assert (run.state, run.score, run.number("wall_s"), run.began_at) == ("killed", None, 0.0, 0.0)
    assert "DQNConfig" in run.agent


def test_runs_are_found_at_any_depth_oldest_first(tmp_path: Path) -> None:
    made_run(tmp_path / "deep/er/b", RunConfig(), began="2026-11-23T13:00:00+0000")
    made_run(tmp_path / "c", RunConfig(), began="2026-11-23T14:30:00+0100")
    made_run(tmp_path / "a", RunConfig(), began="2026-11-23T12:00:00+0000")
    (tmp_path / "notes").mkdir()
    made_run(tmp_path / "a/inner", RunConfig())  # a part of run a
    found = find_runs([tmp_path, tmp_path / "deep"])
    assert [run.path.name for run in found] == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="is not a directory"):
        find_runs([tmp_path / "none"])


def test_runs_behind_links_are_found_once_and_circles_are_left(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    inside = made_run(runs / "b", RunConfig())
    (runs / "a").symlink_to(inside)  # as `latest`
    (runs / "c").symlink_to(made_run(tmp_path / "disk/c", RunConfig()))
    (runs / "circle").symlink_to(runs)
    assert [run.path for run in find_runs([runs])] == [inside, runs / "c"]
