"""The tests of the fault model themselves (target 25).

Small: each row of the fault model must have a test that is run by default, that is neither slow
nor in need of a GPU. Full: all tests that carry the number of a row are run, 50 times in a row;
any that fails once is a flake. What this machine skips is counted. This takes hours, so each run is
kept, and a call adds a few to those of the same code; `--again` adds more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.chaos.finding import Finding, Size, not_run
from benchmarks.common import RESULTS, ROOT, fingerprint, note
from tests.support.fault_model import FAULT_MODEL

KEPT = RESULTS / "chaos" / "suite_runs.jsonl"
"""The runs so far, a line each."""

_RUNS = 50
_RUNS_A_CALL = 10
_LONGEST_S = 900.0
_DEADLINE_S = 3600.0
_TESTS = ["-m", "fault and not slow", "-p", "no:cacheprovider"]
_TWO_AT_A_TIME = ["--numprocesses", "2", "--dist", "loadfile"]
"""As `make test` runs them."""

_PROMISED_RUNS, _PROMISED_TIME = "no test fails in 50 runs", "<= 15 minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run of the tests."""

    tests: int
    skipped: int
    failed: Sequence[str]
    seconds: float


class _Collected:
    """A plugin that notes which rows the tests carry that would be run."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.tests = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = len(session.items)
        for item in session.items:
            if item.get_closest_marker("gpu") is None:
                for mark in item.iter_markers("fault"):
                    self.rows.update(mark.args)


def measure(size: Size, directory: Path) -> list[Finding]:
    """Count the rows that have tests and, in full, run these again and again."""
    found = [_rows(directory)]
    if size == "small":
        why = "only in full size"
        found.append(not_run(25, "runs in a row", _PROMISED_RUNS, why))
        return [*found, not_run(25, "longest run", _PROMISED_TIME, why)]
    code = fingerprint("tests")
    before = len(kept_runs(KEPT, code))
    for number in range(before + 1, min(before + _RUNS_A_CALL, _RUNS) + 1):
        _keep(KEPT, code, _run(directory, number))
    return [*found, *_judged(kept_runs(KEPT, code))]


def _keep(path: Path, code: str, run: Run) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"code": code, **asdict(run)}) + "\n")


def kept_runs(path: Path, code: str) -> list[Run]:
    """Return the runs of this code that were kept."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [json.loads(line) for line in lines]
    return [Run(**fields) for fields in kept if fields.pop("code") == code]


def _rows(directory: Path) -> Finding:
    collected = _Collected()
    with (directory / "collected").open("w") as output, redirect_stdout(output):
        arguments = ["--collect-only", "--quiet", "--rootdir", str(ROOT), str(ROOT / "tests")]
        code = pytest.main([*arguments, *_TESTS], plugins=[collected])
    assert code == pytest.ExitCode.OK, f"pytest could not collect: {code}"
    missing = [row for row in FAULT_MODEL if not collected.rows[row]]
    return Finding(
        target=25,
        what="rows of the fault model",
        measured=f"{len(FAULT_MODEL) - len(missing)} of {len(FAULT_MODEL)} have a test, "
        f"{collected.tests} tests" + "".join(f", none for {row}" for row in missing),
        promised="all",
        passed=not missing,
        numbers={"rows": len(FAULT_MODEL), "missing": len(missing), "tests": collected.tests},
    )


def _run(directory: Path, number: int) -> Run:
    report = directory / f"{number}.xml"
    began = time.monotonic()
    with (directory / f"{number}.log").open("wb") as log:
        ended = subprocess.run(  # noqa: S603  # our own tests
            [sys.executable, "-m", "pytest", *_TESTS, *_TWO_AT_A_TIME, f"--junitxml={report}"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=_DEADLINE_S,
            check=False,
        )
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        text = (directory / f"{number}.log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"pytest broke off with exit code {ended.returncode}: {text[-2000:]}")
    run = read_run(report, time.monotonic() - began)
    note(f"run {number}: {run.tests} tests, {run.skipped} skipped, {run.seconds:.0f} s")
    for name in run.failed:
        note(f"  failed: {name}")
    return run


def read_run(report: Path, seconds: float) -> Run:
    """Read a report of pytest's in the format of JUnit."""
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314  # pytest wrote it
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Run(tests=len(cases), skipped=skipped, failed=failed, seconds=seconds)


def _judged(runs: list[Run]) -> list[Finding]:
    """Say what came of the runs; too few of them keep no promise, but may break it."""
    flakes = Counter(name for run in runs for name in run.failed)
    clean = sum(not run.failed and run.tests > 0 for run in runs)
    longest_s = max(run.seconds for run in runs)
    named = "".join(f"; {name} failed {count} times" for name, count in flakes.items())
    wanted = "" if len(runs) >= _RUNS or clean < len(runs) else f"not run: all {_RUNS}; so far "
    return [
        Finding(
            target=25,
            what="runs in a row",
            measured=f"{wanted}{clean} of {len(runs)} clean, {runs[0].tests} tests of which "
            f"{runs[0].skipped} are skipped here{named}",
            promised=_PROMISED_RUNS,
            passed=clean == len(runs) >= _RUNS,
            numbers={"runs": len(runs), "clean": clean, "skipped": runs[0].skipped},
        ),
        Finding(
            target=25,
            what="longest run",
            measured=f"{longest_s / 60:.1f} minutes",
            promised=_PROMISED_TIME,
            passed=longest_s <= _LONGEST_S,
            timed=True,
            numbers={"longest_s": longest_s},
        ),
    ]
