"""The frame of the chaos bench, with an entry that fails in a chosen way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.chaos import __main__ as bench
from benchmarks.chaos.entries import Entry
from benchmarks.chaos.one_entry import run_apart

FAKE = "tests.benchmarks.chaos.fake_entry"
DEADLINE_S = 60.0


def bench_with(
    monkeypatch: pytest.MonkeyPatch, results: Path, way: str, *arguments: str
) -> tuple[int, dict[str, object]]:
    """Run the fake entry; return the exit code and what was stored."""
    monkeypatch.setattr(bench, "ENTRIES", {"fake": Entry(FAKE, "fakes", 1, 1)})
    monkeypatch.setenv("FAKE_ENTRY", way)
    code = bench.main(["--results", str(results), *arguments])
    return code, json.loads((results / "fake_small.json").read_text())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "strict", "code"),
    [("kept", True, 0), ("late", False, 0), ("late", True, 1), ("broken", False, 1)],
)
def test_exit_code_says_whether_a_promise_was_broken(
    way: str,
    strict: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    strictly = ["--strict"] if strict else []
    assert bench_with(monkeypatch, tmp_path, way, *strictly)[0] == code
    _, again = capsys.readouterr().out.split(" kept, 1 could not run here")
    assert ("a hang" in again) == (way != "kept")


@pytest.mark.processes
@pytest.mark.parametrize(("way", "expected"), [("crash", "exit code -6"), ("raise", "came off")])
def test_entry_that_fails_is_a_broken_finding_and_is_run_again(
    way: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, stored = bench_with(monkeypatch, tmp_path, way)
    assert code == 1
    assert not stored["ended_well"]
    _, again = capsys.readouterr().out.split("0 of 1 kept")
    assert expected in again
    assert bench_with(monkeypatch, tmp_path, "kept")[0] == 0


@pytest.mark.processes
def test_entry_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_ENTRY", "hang")
    assert run_apart(FAKE, "small", tmp_path, 1.0) == "was not done after 1 s"
