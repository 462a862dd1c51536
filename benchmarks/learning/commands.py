"""Seconds to a score with the command that a user types, beside Stable-Baselines3.

    python -m benchmarks.learning.commands                       # what is missing, in turns
    python -m benchmarks.learning.commands --minutes 50          # a part of it; ends in time
    python -m benchmarks.learning.commands --only hopper --seeds 3 --sides asyncrl sb3
    python -m benchmarks.learning.commands --list                # what is missing
    python -m benchmarks.learning.commands --table               # write the tables into the pages

A row of `rows.py` names an environment and a bar. asyncrl runs `train --env ID --stop-at-return
BAR`, with evaluations as they come, so the preset is the suggested one. Stable-Baselines3 runs the
same algorithm in one process, once with equal settings and once with those of its zoo; the time of
its evaluations does not count. Its vector of environments and its threads are chosen once for each
task: the fewest environments that are as fast as any, since it learns more from a step with fewer.
Sides take turns, and each result is kept at once, so a call continues where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.core.seeding import Role, derive_seed
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.yaml_file import load_yaml
from benchmarks.common import ASYNCRL, FIRST_SEED, RESULTS, ROOT, note, positive, write_json
from benchmarks.learning.alike import Asked, equal, variants, zoo
from benchmarks.learning.commands_table import OURS, PEER, ZOO, write_tables
from benchmarks.learning.rows import ROWS, Row
from benchmarks.learning.runs import Point, Run, keep, kept, origin
from benchmarks.peers.apart import end_in_order, python_of, run_apart

DIRECTORY = RESULTS / "learning" / "commands"
SIDES = (OURS, PEER, ZOO)
_ZOO_SEEDS = 3
"""Most of the zoo's settings take far longer, and their column is the second one."""

_OURS = EvaluationConfig()
_PLAYED = {"episodes": _OURS.play.episodes, "eval_seed": derive_seed(_OURS.seed, Role.EVALUATION)}
"""The episodes of asyncrl's evaluations, for the peer as well: others can be easier."""

_SPARE_S = 60.0
"""Seconds beside training: start and end."""

_SEARCH = {"measured_s": 4.0, "limit_s": 20.0}
_AS_FAST = 0.95
"""A rate that is, within what four seconds can measure, the highest."""


class Cell(NamedTuple):
    """One run of the table."""

    task: str
    side: str
    seed: int


# --- one cell ------------------------------------------------------------------------------------


def ours(cell: Cell) -> Run:
    """Run the command, and read what it has written."""
    row, started = ROWS[cell.task], origin()
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        asked = ["train", "--env", row.env, "--stop-at-return", f"{row.bar:g}"]
        limits = ["--seed", str(cell.seed), "--max-seconds", f"{row.max_s:g}"]
        command = [str(python_of(row.venv)), *ASYNCRL[1:], *asked, *limits]
        begun, cpu_s = time.perf_counter(), _children_cpu_s()
        subprocess.run(  # noqa: S603  # our own command
            [*command, "--run-dir", str(run_dir), "--quiet"],
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=row.max_s + 300,
        )
        whole_s, cpu_s = time.perf_counter() - begun, _children_cpu_s() - cpu_s
        summary = _read(run_dir / "summary.json")
        config = load_yaml(RunConfig, run_dir / "config.yaml")
        agent = _read(run_dir / "run.json")["starts"][0]["agent"]
    curve = [_point(seen) for seen in summary["evaluations"]]
    bar_s = summary["seconds_to_stop_bar"]
    at_bar = [steps for steps, _, score in curve if score >= row.bar]
    return Run(
        algorithm=agent,
        task=cell.task,
        mode=OURS,
        seed=cell.seed,
        settings=equal(config),
        score=max((point[2] for point in curve), default=row.bar - 1e9),
        score_std=0.0,
        reached=bar_s is not None,
        wall_s=round(bar_s or summary["wall_s"], 2),
        env_steps=at_bar[0] if at_bar else summary["env_steps"],
        opt_steps=summary["opt_steps"],
        stop_reason=summary["stop_reason"],
        curve=curve,
        details={
            "whole_s": round(whole_s, 2),
            "cpu_s": round(cpu_s, 2),
            "start_s": round(summary["start_up_s"], 2),
            "command": shlex.join(["asyncrl", *asked]),
        },
        origin=started,
    )


def _point(seen: dict[str, float]) -> Point:
    return int(seen["env_steps"]), round(seen["wall_s"], 2), round(seen["eval_reward"], 2)


def _read(path: Path) -> Any:  # noqa: ANN401  # JSON
    return json.loads(path.read_text(encoding="utf-8"))


def peer(cell: Cell, beside: Run, fastest: Asked) -> Run:
    """Run Stable-Baselines3 beside a run of ours."""
    row, started = ROWS[cell.task], origin()
    asked = {**fastest, **_PLAYED, "bar": row.bar, "max_s": row.max_s, "seed": cell.seed}
    begun, cpu_s = time.perf_counter(), _children_cpu_s()
    printed = _ask(row, asked, limit_s=3 * row.max_s + 300)
    cpu_s = _children_cpu_s() - cpu_s - printed["away_cpu_s"]
    curve: list[Point] = printed["curve"]
    return Run(
        algorithm=beside.algorithm,
        task=cell.task,
        mode=cell.side,
        seed=cell.seed,
        settings=fastest,
        score=max(point[2] for point in curve),
        score_std=0.0,
        reached=printed["reached"],
        wall_s=printed["wall_s"],
        env_steps=printed["env_steps"],
        curve=curve,
        details={
            "whole_s": round(time.perf_counter() - begun, 2),
            "cpu_s": round(cpu_s, 2),
            "version": printed["version"],
        },
        origin=started,
    )


def fastest_of(cell: Cell, beside: Run, directory: Path) -> Asked:
    """Return a peer's settings with the best vector and threads; measures each of them once."""
    row = ROWS[cell.task]
    asked = _wanted(cell.side, row, beside)
    candidates = [
        {**variant, "env": row.env, "policy": row.policy, "seed": 0}
        for variant in variants(asked, is_zoo=cell.side == ZOO)
    ]
    path = directory / "fastest" / f"{cell.task}_{cell.side}.json"
    found = _read(path) if path.exists() else {}
    if found.get("asked") != asked:
        limit_s = len(candidates) * (_SEARCH["limit_s"] + 30)
        rates = _ask(row, {"candidates": candidates, **_SEARCH}, limit_s)["rates"]
        names = ("vector", "n_envs", "threads")
        several = [{name: made[name] for name in names} for made in candidates]
        measured = [{**s, "env_steps_per_s": r} for s, r in zip(several, rates, strict=True)]
        found = {"asked": asked, "measured": measured, "origin": origin()}
        write_json(path, found)
    return choose(candidates, [seen["env_steps_per_s"] or 0.0 for seen in found["measured"]])


def choose(candidates: Sequence[Asked], rates: Sequence[float]) -> Asked:
    """Return the candidate with the fewest environments of those as fast as any."""
    as_fast = [i for i, rate in enumerate(rates) if rate >= _AS_FAST * max(rates)]
    return candidates[min(as_fast, key=lambda i: (candidates[i]["n_envs"], -rates[i]))]


def _wanted(side: str, row: Row, beside: Run) -> Asked:
    return zoo(row, beside.settings) if side == ZOO else dict(beside.settings)


def _ask(row: Row, asked: Asked, limit_s: float) -> dict[str, Any]:
    python = str(python_of(row.venv or PEER))
    command = [python, "-m", "benchmarks.peers.sb3_to_score", json.dumps(asked)]
    printed, error = run_apart(command, limit_s)
    if error:
        raise RuntimeError(f"{row.env}: {error}")
    return printed


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def take(cell: Cell, directory: Path) -> None:
    """Do the run of a cell, and keep it."""
    if cell.side == OURS:
        run = ours(cell)
    else:
        beside = _beside(cell, kept(directory))
        run = peer(cell, beside, fastest_of(cell, beside, directory))
    keep(directory, run)
    bar = "at the bar" if run.reached else "missed it"
    note(f"{run.task} {run.seed} {run.mode}: {bar}, {run.wall_s:.1f} s, {run.env_steps:,} steps")


# --- all cells -----------------------------------------------------------------------------------


def missing(args: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that can be run and are not kept; sides begin in turns."""
    runs = kept(args.results)
    done = {Cell(run.task, run.mode, run.seed) for run in runs}
    for i in range(args.seeds):
        for task in args.only:
            for side in SIDES if i % 2 == 0 else reversed(SIDES):
                cell = Cell(task, side, args.first_seed + i)
                most = min(ROWS[task].seeds, _ZOO_SEEDS if side == ZOO else args.seeds)
                if i < most and side in args.sides and cell not in done and _can_run(cell, runs):
                    yield cell


def _can_run(cell: Cell, runs: Sequence[Run]) -> bool:
    """Whether it is our side, or a peer for which there is a run of ours with settings to copy."""
    if cell.side == OURS:
        return True
    row, beside = ROWS[cell.task], _beside(cell, runs)
    if beside is None or not beside.settings or not python_of(row.venv or PEER).exists():
        return False
    return bool(_wanted(cell.side, row, beside))


def _beside(cell: Cell, runs: Sequence[Run]) -> Any:  # noqa: ANN401  # a run or None
    """Return our run of a cell's task, of the same seed if there is one."""
    own = [run for run in runs if (run.task, run.mode) == (cell.task, OURS)]
    return next((run for run in own if run.seed == cell.seed), own[-1] if own else None)


def run_missing(args: argparse.Namespace) -> int:
    """Run the missing cells, each in a separate process, until none is left or time is over."""
    until = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    failed: set[Cell] = set()
    while cells := [cell for cell in missing(args) if cell not in failed]:
        left_s = until - time.monotonic()
        fits = [cell for cell in cells if _expected_s(cell, args.results) < left_s]
        if not fits:
            note(f"the time is over; the next call begins with {' '.join(map(str, cells[0]))}")
            break
        words = ["--cell", *map(str, fits[0]), "--results", str(args.results)]
        command = [*shlex.split(args.through), sys.executable, "-m", "benchmarks.learning.commands"]
        if not _ends_within([*command, *words], left_s):
            failed.add(fits[0])
    return len(failed)


def _expected_s(cell: Cell, directory: Path) -> float:
    """Return the seconds that a cell may take: as before, or at most."""
    row = ROWS[cell.task]
    before = [
        run.details["whole_s"]
        for run in kept(directory)
        if (run.task, run.mode) == (cell.task, cell.side)
    ]
    most = row.max_s + _SPARE_S if cell.side == OURS else 1.5 * row.max_s + 3 * _SPARE_S
    return 1.5 * max(before) + 10.0 if before else most


def _ends_within(command: Sequence[str], limit_s: float) -> bool:
    """Run a command; end it with all that it has started once the seconds are over."""
    process = subprocess.Popen(  # noqa: S603  # our own
        command, cwd=ROOT, start_new_session=True
    )
    try:
        return process.wait(None if limit_s == float("inf") else limit_s) == 0
    except subprocess.TimeoutExpired:
        note("the time is over before the run is")
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are missing, or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--sides", nargs="+", default=[*SIDES], choices=SIDES)
    parser.add_argument("--seeds", type=positive, default=10, help="at most")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--minutes", type=float, default=0.0, help="end before; 0 is no limit")
    parser.add_argument("--through", default="", help="command before that of each cell")
    parser.add_argument("--list", action="store_true", help="print what is missing")
    parser.add_argument("--table", action="store_true", help="write the tables into the pages")
    parser.add_argument("--cell", nargs=3, metavar=("TASK", "SIDE", "SEED"), help="run this one")
    parser.add_argument("--results", type=Path, default=DIRECTORY)
    args = parser.parse_args(argv)
    if args.cell:
        task, side, seed = args.cell
        end_in_order()
        take(Cell(task, side, int(seed)), args.results)
    elif args.list:
        for cell in missing(args):
            print(*cell)
    elif args.table:
        write_tables(kept(args.results))
    else:
        return run_missing(args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
