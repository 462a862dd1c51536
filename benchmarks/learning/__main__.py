"""Does every algorithm learn? Trains what has not been trained yet, and keeps each run.

Each run is a separate process and is saved when it is done: the next call continues with the next
run. A run counts as done while its settings stay the same; --again
does it once more, for instance because the code has changed.

    python -m benchmarks.learning                                  # everything, cheap tasks first
    python -m benchmarks.learning --only dqn/cartpole 'sac/*'      # some of it
    python -m benchmarks.learning --equal                          # beside peers, same settings
    python -m benchmarks.learning --list                           # what is done, what is missing
    python -m benchmarks.learning --table                          # what came out
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.common import PAGE, note, positive, publish
from benchmarks.learning.pieces import Failed, Piece, pieces_of_cases, pieces_of_duels
from benchmarks.learning.runs import DIRECTORY, keep, kept
from benchmarks.learning.table import MARKS, render

_DUEL_SEEDS = 5
_EQUAL, _DUELS = "equal", "peers"
"""Folders of the runs beside other frameworks: with the same settings, and, no longer measured,
each with its own."""


def run_pieces(pieces: Sequence[Piece], directory: Path, *, again: bool, budget_s: float) -> int:
    """Do the pieces that are missing and possible; return how many failed.

    Args:
        pieces: The pieces in order.
        directory: Where runs are kept.
        again: Also repeat pieces that are done.
        budget_s: No run starts after this number of seconds; 0 is no limit.
    """
    began, failed = time.monotonic(), 0
    for piece in pieces:
        if piece.reason or (piece.done(kept(directory)) and not again):
            continue
        if budget_s and time.monotonic() - began >= budget_s:
            note(f"{budget_s:g} s are over; the next call begins with {piece}")
            break
        note(f"{time.strftime('%H:%M:%S')} {piece}")
        try:
            run = piece.run()
        except Failed as error:
            failed += 1
            note(str(error))
            continue
        keep(directory, run)
        note(f"    {run.score:.1f} after {run.env_steps:,} env steps, {run.wall_s:.1f} s")
    return failed


def show(pieces: Sequence[Piece], directory: Path) -> None:
    """Print a line for each piece."""
    runs = kept(directory)
    for piece in pieces:
        run = piece.done(runs)
        state = piece.reason or "missing"
        if run:
            bar = "at the target" if run.reached else ""
            state = f"{run.score:.1f} {bar} ({run.origin['date']}, {run.origin['commit']})"
        print(f"{piece.name:32} {piece.mode:8} {piece.seed:3}  {state}")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    args = _arguments(argv)
    directory, seeds = args.results, args.seeds or _DUEL_SEEDS
    if args.equal:
        directory, pieces = directory / _EQUAL, pieces_of_duels(seeds)
    else:
        pieces = pieces_of_cases(args.seeds, args.max_env_steps)
    pieces = [p for p in pieces if any(fnmatch(p.name, only) for only in args.only)]
    if not pieces:
        note(f"nothing is called {' or '.join(args.only)}; --list shows what there is")
        return 2
    if args.list:
        show(pieces, directory)
    if args.table:
        folders = (args.results, args.results / _EQUAL, args.results / _DUELS)
        publish(args.page, render(*map(kept, folders)), MARKS)
    if args.list or args.table:
        return 0
    return int(run_pieces(pieces, directory, again=args.again, budget_s=args.seconds_budget) > 0)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="ALGORITHM/TASK")
    parser.add_argument("--seeds", type=positive, default=0, help="at most, in place of the tasks'")
    parser.add_argument("--seconds-budget", type=float, default=0.0, help="then begin no other run")
    parser.add_argument("--max-env-steps", type=int, default=0, help="of a run; to try things out")
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--equal", action="store_true", help="beside peers with the same settings")
    parser.add_argument("--list", action="store_true", help="what is done, what is missing")
    parser.add_argument("--table", action="store_true", help="write the tables into the page")
    parser.add_argument("--results", type=Path, default=DIRECTORY)
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
