"""What do four faults do to a training, here and in other frameworks?

Each cell is a run of its own with two actors, one of which is hit. What is found is kept in
results/chaos/peers.json as soon as it is there, and the next call goes on where this one stopped.

    python -m benchmarks.chaos.peers [--only sb3/hang ...] [--again] [--table]
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
from pathlib import Path
from types import FrameType

from benchmarks.chaos.peers.cell import SIDES, Cell, DidNotStart, cells, run_cell
from benchmarks.chaos.peers.findings import FILE, Kept, load, save
from benchmarks.chaos.peers.table import BEGIN, END, render
from benchmarks.common import RESULTS, ROOT, note, provenance
from benchmarks.make_table import insert


def chosen(only: list[str]) -> list[Cell]:
    """Return the cells that a pattern fits, or that are below one; all, if there is none."""
    patterns = [pattern for name in only for pattern in (name, f"{name}/*")] or ["*"]
    fits = [c for c in cells() if any(fnmatch.fnmatch(c.name, pattern) for pattern in patterns)]
    if not fits:
        raise SystemExit(f"no cell is called {only}; there are {[cell.name for cell in cells()]}")
    return fits


def keep(cell: Cell) -> Kept | None:
    """Run one cell; return None, and say why, if it did not start."""
    origin = provenance()
    load_before = os.getloadavg()[0]
    try:
        finding, version = run_cell(cell)
    except DidNotStart as error:
        note(f"{cell.name} did not start: {error}")
        return None
    note(f"{cell.name}: {finding.outcome} after {finding.after_s:g} s; told: {finding.told}")
    return Kept(
        finding=finding,
        version=version,
        date=origin["date"],
        commit=origin["commit"],
        load_before=load_before,
        patience_s=cell.patience_s,
        machine=origin["machine"],
    )


def measure(path: Path, wanted: list[Cell], *, again: bool) -> None:
    """Run what is missing, and keep it."""
    for cell in wanted:
        if not SIDES[cell.side].python.exists():
            note(f"{cell.name}: benchmarks/peers/make_venv.sh {SIDES[cell.side].venv} is missing")
        elif (again or cell.name not in load(path)) and (kept := keep(cell)):
            save(path, {**load(path), cell.name: kept})


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CELL", help="as sb3/hang, or sb3")
    parser.add_argument("--again", action="store_true", help="measure these anew")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    parser.add_argument("--results", type=Path, default=RESULTS / "chaos")
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "README.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    path = given.results / FILE
    if not given.table:
        measure(path, chosen(given.only), again=given.again)
    page = given.page.read_text(encoding="utf-8")
    table = render(cells(), load(path))
    given.page.write_text(insert(page, table, (BEGIN, END)), encoding="utf-8")


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


if __name__ == "__main__":
    main()
