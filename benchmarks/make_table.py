"""Writes the results into README.md, as a table between two marks.

python -m benchmarks.make_table
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import PAGE, RESULTS, publish

MARKS = "<!-- results: written by make_table.py -->", "<!-- end of results -->"

_HEAD = [
    "| measured / compared with | ratio | of single rounds | ours | other | unit | taken |",
    "| --- | --- | --- | --- | --- | --- | --- |",
]


def render(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of all comparisons, and the machines they were made on."""
    rows: list[str] = []
    machines: dict[str, list[str]] = {}
    for result in results:
        rows += [_row(result, comparison) for comparison in result["comparisons"]]
        machines.setdefault(_machine(result["machine"]), []).append(result["name"])
    lines = ["", *_HEAD, *rows, ""]
    for machine, names in machines.items():
        whose = "" if len(machines) == 1 else f" ({', '.join(names)})"
        lines += [f"Hardware and versions{whose}: {machine}.", ""]
    return "\n".join(lines)


def _row(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    ratios = sorted(ratio for ratio in comparison["ratios"] if ratio is not None)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else "none"
    if missing := len(comparison["ratios"]) - len(ratios):
        spread += f", {missing} without"
    cells = (
        comparison["what"],
        f"**{_number(comparison['ratio'], 2)}**",
        f"{spread} ({len(comparison['ratios'])})",
        _number(comparison["ours"]),
        _number(comparison["other"]),
        comparison["unit"],
        f"{result['date']}, {result['commit']}, load {result['load_before']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, decimals: int | None = None) -> str:
    if value is None:
        return "not reached"
    if decimals is None:
        decimals = 0 if value >= 1000 else 1 if value >= 1 else 4
    return f"{value:,.{decimals}f}"


def _machine(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "numpy", "gymnasium"))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['platform']}, "
        f"Python {machine['python']}, {versions}"
    )


def main() -> None:
    """Read all results and rewrite the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    paths = sorted(args.results.glob("*.json"))
    read = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    results = [result for result in read if "comparisons" in result]
    publish(args.page, render(results), MARKS)
    print(f"{len(results)} results are in {args.page}")


if __name__ == "__main__":
    main()
