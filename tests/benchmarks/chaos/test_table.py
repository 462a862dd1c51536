"""The table of all targets."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from benchmarks.chaos.finding import Finding, not_run
from benchmarks.chaos.table import MARKS, newest, render, write_table
from benchmarks.chaos.targets import TARGETS


def result(entry: str, size: str, date: str, *findings: Finding) -> dict[str, Any]:
    return {
        "entry": entry,
        "size": size,
        "date": date,
        "commit": "abc",
        "machine": machine(),
        "findings": [asdict(finding) for finding in findings],
    }


def finding(target: int, *, passed: bool = True, timed: bool = False) -> Finding:
    return Finding(
        target=target, what="a | b", measured="2 s", promised="1 s", passed=passed, timed=timed
    )


def rows(*results: dict[str, Any]) -> dict[int, list[str]]:
    found = {}
    for line in render(results).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit():
            found[int(cells[0])] = cells
    return found


def test_each_target_has_a_row() -> None:
    found = rows()
    assert list(found) == list(TARGETS) == list(range(1, 31))
    assert {len(cells) for cells in found.values()} == {6}
    assert {cells[4] for cells in found.values()} == {"not run"}


def test_full_results_come_before_newer_small_ones() -> None:
    old, full = result("a", "small", "2030-01-03"), result("a", "full", "2030-01-01")
    assert newest([full, old, result("b", "small", "2030-01-01")])[0] is full


@pytest.mark.parametrize(
    ("findings", "kept"),
    [
        ([finding(3)], "yes"),
        ([finding(3), finding(3, passed=False, timed=True)], "no (timed)"),
        ([finding(3, passed=False), finding(3, passed=False, timed=True)], "**no**"),
        ([finding(3), not_run(3, "c", "d", "no root")], "in part"),
        ([not_run(3, "c", "d", "no root")], "not run"),
    ],
)
def test_worst_verdict_counts(findings: list[Finding], kept: str) -> None:
    assert rows(result("e", "small", "2030-01-01", *findings))[3][4] == kept


def test_row_names_what_was_measured_and_where() -> None:
    cells = rows(
        result("e", "small", "2030-01-01", finding(3)),
        result("f", "full", "2030-01-02", finding(3)),
    )[3]
    assert cells[3] == "a / b: 2 s<br>a / b: 2 s"
    assert cells[5] == "`e`, small, 2030-01-01, abc<br>`f`, full, 2030-01-02, abc"


def test_table_goes_between_its_marks(tmp_path: Path) -> None:
    (tmp_path / "e_small.json").write_text(
        json.dumps(result("e", "small", "2030-01-01", finding(7)))
    )
    (tmp_path / "other.json").write_text('{"question": "of something else"}')
    page = tmp_path / "README.md"
    page.write_text(f"before\n{MARKS[0]}\nof before\n{MARKS[1]}\nafter")
    write_table(tmp_path, page)
    written = page.read_text()
    assert written.startswith(f"before\n{MARKS[0]}\n")
    assert written.endswith(f"{MARKS[1]}\nafter")
    assert "| 7 |" in written
    assert "of before" not in written
