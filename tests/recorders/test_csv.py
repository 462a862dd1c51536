"""Records as lines of a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from asyncrl.recorders.csv import CsvRecorder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, *records: dict[str, float], at: int | None = None) -> None:
    recorder = CsvRecorder(path)
    if at is not None:
        recorder.resume_at(env_steps=10 * at, opt_steps=at)
    recorder.start({})
    for record in records:
        recorder.write(record)
    recorder.close(failed=False)


def test_new_metric_becomes_one_more_column(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.csv"
    write(path, {"opt_steps": 1.0}, {"opt_steps": 2.0, "eval_reward": 0.1}, {"opt_steps": 3.0})
    assert rows(path) == [
        {"opt_steps": "1.0", "eval_reward": ""},
        {"opt_steps": "2.0", "eval_reward": "0.1"},
        {"opt_steps": "3.0", "eval_reward": ""},
    ]
    assert [p.name for p in path.parent.iterdir()] == ["metrics.csv"]


def test_resumed_run_loses_what_is_later_than_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    write(path, *({"env_steps": 10.0 * n, "opt_steps": float(n)} for n in range(5)))
    write(path, {"env_steps": 40.0, "opt_steps": 4.0, "fps": 1.0}, at=3)
    assert [row["opt_steps"] for row in rows(path)] == ["0.0", "1.0", "2.0", "3.0", "4.0"]
    assert [row["fps"] for row in rows(path)] == ["", "", "", "", "1.0"]


@pytest.mark.parametrize("lost", [",456.0\n", "\n"])
def test_line_that_a_crash_has_cut_off_is_removed(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "metrics.csv"
    write(path, {"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 456.0})
    path.write_text(path.read_text().removesuffix(lost))
    write(path, {"a": 5.0, "b": 6.0})
    assert rows(path) == [{"a": "1.0", "b": "2.0"}, {"a": "5.0", "b": "6.0"}]
