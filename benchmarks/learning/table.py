"""What came out of the trainings, as two tables: to a bar, and beside other frameworks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from asyncrl.bench.result import title
from benchmarks.learning.offline import OFFLINE_CASES, OfflineCase
from benchmarks.learning.offline import missing as missing_offline
from benchmarks.learning.runs import Run
from benchmarks.learning.tasks import CASES, DUELS, OURS, PEERS, TASKS, Case, Duel, absent, missing

MARKS = "<!-- learning: written by benchmarks.learning --table -->", "<!-- end of learning -->"

_PEERS = {"sb3": "Stable-Baselines3", "tianshou": "Tianshou"}
_TOLERANCE = 0.02
"""Of the way from random play to the bar."""

_CASES_HEAD = (
    "| task, bar | algorithm | score | at the bar | env steps | seconds | policy lag |"
    " one process: score | env steps | seconds |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
_DUELS_HEAD = (
    "| task, env steps | algorithm | peer | score: asyncrl | peer | no worse? |"
    " seconds: asyncrl | peer | times as fast |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def render(runs: Sequence[Run], duels: Sequence[Run]) -> str:
    """Return both tables, and what they were measured with."""
    rows = [_case_row(case, runs) for case in CASES]
    rows += [_offline_row(case, runs) for case in OFFLINE_CASES]
    lines = ["", *_CASES_HEAD, *rows, ""]
    lines += [*_DUELS_HEAD]
    lines += [_duel_row(duel, peer, duels) for duel in DUELS for peer in PEERS]
    return "\n".join([*lines, "", *_origins([*runs, *duels])])


def no_worse(ours: Sequence[float], theirs: Sequence[float], span: float) -> bool:
    """Whether our mean is not lower by more than noise.

    That is two standard errors of the difference, and 2 % of the way from random play to the bar,
    which is there for scores that hardly vary.
    """
    errors = [statistics.variance(s) / len(s) if len(s) > 1 else math.inf for s in (ours, theirs)]
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    return difference >= -(2 * math.sqrt(sum(errors)) + _TOLERANCE * span)


def _case_row(case: Case, runs: Iterable[Run]) -> str:
    task = TASKS[case.task]
    own = [run for run in runs if run.name == case.name]
    cells = [f"{task.title}, {task.bar:g}", case.algorithm]
    cells += _async_cells([run for run in own if run.mode == "async"], missing(case))
    cells += _sync_cells([run for run in own if run.mode == "sync"], missing(case))
    return f"| {' | '.join(cells)} |"


def _offline_row(case: OfflineCase, runs: Iterable[Run]) -> str:
    task = TASKS[case.task]
    own = [run for run in runs if (run.name, run.mode) == (case.name, "offline")]
    cells = [f"{task.title}, {task.bar:g}", f"{case.algorithm}, from data"]
    cells += [*_async_cells(own, missing_offline(case)), "", "", ""]
    return f"| {' | '.join(cells)} |"


def _async_cells(runs: Sequence[Run], reason: str) -> list[str]:
    if not runs:
        return [f"not run{f': {reason}' if reason else ''}", "", "", "", ""]
    lags = [run.lag_opt_steps for run in runs if run.lag_opt_steps is not None]
    lags_s = [run.lag_s for run in runs if run.lag_s is not None]
    lag = f"{statistics.median(lags):.1f} ({_seconds(statistics.median(lags_s))})" if lags else ""
    return [
        _mean([run.score for run in runs]),
        f"{sum(run.reached for run in runs)} of {len(runs)}",
        f"{statistics.median(run.env_steps for run in runs):,.0f}",
        f"{statistics.median(run.wall_s for run in runs):,.1f}",
        lag,
    ]


def _sync_cells(runs: Sequence[Run], reason: str) -> list[str]:
    if not runs:
        return ["" if reason else "not run", "", ""]
    (run,) = runs
    short = "" if run.reached else ", not at the bar"
    score = f"{run.score:.{_digits(run.score)}f}"
    return [f"{score}{short}", f"{run.env_steps:,}", f"{run.wall_s:,.1f}"]


def _duel_row(duel: Duel, peer: str, runs: Iterable[Run]) -> str:
    task = TASKS[duel.task]
    sides = {side: [r for r in runs if (r.name, r.mode) == (duel.name, side)] for side in PEERS}
    ours = [run for run in runs if (run.name, run.mode) == (duel.name, OURS)]
    theirs = sides[peer]
    cells = [f"{task.title}, {duel.env_steps:,}", duel.algorithm, _PEERS[peer]]
    if not ours or not theirs:
        why = absent(duel, peer) or absent(duel, OURS)
        cells += [f"not run{f': {why}' if why else ''}", "", "", "", "", ""]
        return f"| {' | '.join(cells)} |"
    scores = [run.score for run in ours], [run.score for run in theirs]
    seconds = [statistics.median(run.wall_s for run in side) for side in (ours, theirs)]
    fine = no_worse(*scores, abs(task.bar - task.random))
    cells += [_mean(scores[0]), _mean(scores[1]), "yes" if fine else "**no**"]
    cells += [f"{seconds[0]:.1f}", f"{seconds[1]:.1f}", f"**{seconds[1] / seconds[0]:.2f}**"]
    return f"| {' | '.join(cells)} |"


def _digits(score: float) -> int:
    """Return how many decimals a score is shown with."""
    return 1 if abs(score) >= 1 else 3


def _mean(scores: Sequence[float]) -> str:
    mean = statistics.fmean(scores)
    digits = _digits(mean)
    spread = f" +- {statistics.stdev(scores):.{digits}f}" if len(scores) > 1 else ""
    return f"{mean:.{digits}f}{spread} ({len(scores)})"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _origins(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return ["Nothing has been run yet.", ""]
    made = [run.origin for run in runs]
    dates = sorted({o["date"] for o in made})
    commits = sorted({o["commit"] or "one not noted" for o in made})
    loads = [o["load_before"] for o in made]
    versions: Mapping[str, str] = {
        _PEERS[run.mode]: run.details["version"] for run in runs if run.mode in _PEERS
    }
    beside = "".join(f", {peer} {version}" for peer, version in sorted(versions.items()))
    return [
        f"Taken {' to '.join(sorted({dates[0], dates[-1]}))}, commits {', '.join(commits)}, load "
        f"before a run {min(loads):.1f} to {max(loads):.1f}.",
        *(f"On: {machine}{beside}." for machine in sorted({title(o["machine"]) for o in made})),
        "",
    ]
