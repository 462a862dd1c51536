"""The table of all targets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from benchmarks.chaos.finding import Finding, not_run
from benchmarks.chaos.table import render


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
