"""How runs of tests are read and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import suite
from benchmarks.chaos.suite import Run, kept_runs, read_run

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure>why</failure></testcase>
<testcase classname="tests.b" name="test_worse"><error>why</error></testcase>
<testcase classname="tests.b" name="test_no_gpu"><skipped>no GPU</skipped></testcase>
</testsuite></testsuites>"""


def made(seconds: float, *failed: str, tests: int = 4) -> Run:
    return Run(tests=tests, skipped=1, failed=failed, seconds=seconds)


def test_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(REPORT)
    run = read_run(tmp_path / "r.xml", 12.0)
    assert (run.tests, run.skipped, run.seconds) == (4, 1, 12.0)
    assert run.failed == ["tests.a.test_bad", "tests.b.test_worse"]


def test_one_flake_in_many_runs_breaks_the_promise() -> None:
    runs = [made(60.0), made(90.0, "tests.a.test_bad")]
    in_a_row, longest = suite._judged(runs)
    assert in_a_row.verdict == "broken"
    assert "1 of 2 clean, 4 tests of which 1 are skipped here" in in_a_row.measured
    assert "tests.a.test_bad failed 1 times" in in_a_row.measured
    assert longest.measured == "1.5 minutes"
    assert longest.passed
    in_a_row, longest = suite._judged([made(901.0)] * 50)
    assert in_a_row.verdict == "kept"
    assert longest.verdict == "missed"


def test_few_runs_prove_nothing_yet() -> None:
    in_a_row = suite._judged([made(60.0)] * 49)[0]
    assert in_a_row.verdict == "not run"
    assert "49 of 49 clean" in in_a_row.measured


def test_runs_of_the_same_code_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert kept_runs(path, "now") == []
    suite._keep(path, "then", made(1.0))
    suite._keep(path, "now", made(2.0, "tests.a.test_bad"))
    suite._keep(path, "now", made(3.0))
    assert [run.seconds for run in kept_runs(path, "now")] == [2.0, 3.0]
    assert suite._judged(kept_runs(path, "now"))[0].verdict == "broken"


def test_a_run_without_tests_proves_nothing() -> None:
    assert suite._judged([made(1.0, tests=0)])[0].verdict == "broken"


def test_a_run_that_is_broken_off_is_no_clean_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("def test_good(): pass\ndef test_ends(): raise KeyboardInterrupt\n")
    monkeypatch.setattr(suite, "_TESTS", [str(broken), "-p", "no:cacheprovider"])
    with pytest.raises(RuntimeError, match="pytest broke off with exit code"):
        suite._run(tmp_path, 1)
