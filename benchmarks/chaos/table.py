"""Writes what was found into README.md, as one table of all targets between two marks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.tools.bench.result import title
from benchmarks.chaos.finding import Finding
from benchmarks.common import publish

MARKS = "<!-- chaos: written by benchmarks.chaos --table -->", "<!-- end of chaos -->"

_HEAD = [
    "|  | fault | promised | measured | kept | entry, size, date, commit |",
    "| --: | --- | --- | --- | --- | --- |",
]

_TARGETS = Path(__file__).with_name("targets.txt")
"""What may happen, and what is promised then: a line for each number, from 1 on."""

_BREAK = "<br>"
"""Between lines of one cell."""


def findings_of(result: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of a stored result."""
    return [Finding(**finding) for finding in result["findings"]]


def newest(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one result of each entry: the full one if there is one."""
    chosen: dict[str, Mapping[str, Any]] = {}
    for result in sorted(results, key=lambda result: (result["size"] == "full", result["date"])):
        chosen[result["entry"]] = result
    return [chosen[name] for name in sorted(chosen)]


def render(results: Iterable[Mapping[str, Any]]) -> str:
    """Return a row for each target, and the machines they were measured on."""
    chosen = newest(results)
    machines: dict[str, list[str]] = {}
    for result in chosen:
        machines.setdefault(title(result["machine"]), []).append(result["entry"])
    targets = enumerate(_TARGETS.read_text(encoding="utf-8").splitlines(), start=1)
    lines = ["", *_HEAD, *(_row(number, target, chosen) for number, target in targets), ""]
    for machine, names in machines.items():
        whose = "" if len(machines) == 1 else f" ({', '.join(names)})"
        lines += [f"Hardware and versions{whose}: {machine}.", ""]
    return "\n".join(lines)


def write_table(results: Path, page: Path) -> None:
    """Put the table of all results in a directory into a page."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    results_of_entries = [result for result in read if "findings" in result]
    publish(page, render(results_of_entries), MARKS)


def _row(number: int, target: str, results: Iterable[Mapping[str, Any]]) -> str:
    found: list[Finding] = []
    sources: list[str] = []
    for result in results:
        its = [finding for finding in findings_of(result) if finding.target == number]
        if its:
            found += its
            taken = f"{result['date']}, {result['commit']}"
            sources.append(f"`{result['entry']}`, {result['size']}, {taken}")
    cells = (
        str(number),
        *target.split(" | "),
        _BREAK.join(f"{finding.what}: {finding.measured}" for finding in found) or "not run",
        _verdict(found),
        _BREAK.join(sources),
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _verdict(found: list[Finding]) -> str:
    """Return the worst verdict; findings that did not run do not count."""
    verdicts = {finding.verdict for finding in found}
    for worst in ("broken", "missed"):
        if worst in verdicts:
            return "**no**" if worst == "broken" else "no (timed)"
    if not verdicts - {"not run"}:
        return "not run"
    return "in part" if "not run" in verdicts else "yes"
