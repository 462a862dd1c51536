"""Tables of training runs: to a bar, and beside other frameworks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from asyncrl.tools.bench.result import title
from benchmarks.common import FIRST_SEED, is_clean
from benchmarks.learning.offline import OFFLINE_CASES, OfflineCase
from benchmarks.learning.runs import Run
from benchmarks.learning.tasks import CASES, DUELS, EQUAL, OURS, TASKS, Case, Duel

MARKS = "<!-- learning: written by benchmarks.learning --table -->", "<!-- end of learning -->"

_SIDES = {OURS: "asyncrl", "sb3": "Stable-Baselines3", "tianshou": "Tianshou"}
_TOLERANCE = 0.02
"""Share of the distance from random play to the target score."""

ENOUGH_SEEDS = 5
"""Number of fresh seeds of a case from which its runs replace older ones."""

_SEEDS_TO_JUDGE = 3
"""Number of seeds of each side needed to call one no worse."""

_CASES_HEAD = (
    "| task, target | algorithm | score | at the target | env steps | seconds | policy lag |"
    " one process: score | env steps | seconds |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
_DUELS_HEAD = (
    "| task | framework | env steps | updates | networks, batches | cores | score | seconds |"
    " speed-up of asyncrl | no worse? |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
_EQUAL_SETTINGS = "Equal settings on both sides"
_OWN_SETTINGS = "Each framework with its own settings, which does not compare speed at equal work"


def render(runs: Sequence[Run], equal: Sequence[Run], duels: Sequence[Run]) -> str:
    """Return all tables, each with its conditions; runs of uncommitted code are left out."""
    known = [run for run in runs if is_clean(run.origin)]
    fresh = [run for run in known if run.seed >= FIRST_SEED]
    seeds = Counter(name for name, _ in {(run.name, run.seed) for run in fresh})
    measured = [run for run in fresh if seeds[run.name] >= ENOUGH_SEEDS]
    names = {run.name for run in measured}
    tuned = [run for run in known if run.seed < FIRST_SEED and run.name not in names]
    lines = [
        *_cases(f"Seeds from {FIRST_SEED} on, on which no preset was tuned", measured),
        *_cases("Seeds 0 to 2, on which presets were tuned: read them as the best case", tuned),
        *_missing(known),
        *_duels(_EQUAL_SETTINGS, EQUAL, equal),
        *_duels(_OWN_SETTINGS, DUELS, duels),
    ]
    return "\n".join(["", *lines])


def no_worse(ours: Sequence[float], theirs: Sequence[float], span: float) -> bool:
    """Whether our mean is not lower by more than noise.

    Noise is two standard errors of the difference, plus 2 % of the way from random play to the bar,
    which is there for scores that hardly vary.
    """
    errors = [statistics.variance(s) / len(s) if len(s) > 1 else math.inf for s in (ours, theirs)]
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    return difference >= -(2 * math.sqrt(sum(errors)) + _TOLERANCE * span)


def _by_machine(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(title(run.origin["machine"]), []).append(run)
    return found


def _cases(words: str, runs: Sequence[Run]) -> list[str]:
    lines = []
    for machine, own in _by_machine(runs).items():
        rows = [_case_row(case, own) for case in CASES if _of(case, own)]
        rows += [_offline_row(case, own) for case in OFFLINE_CASES if _of(case, own)]
        lines += [_heading(words, machine, own), "", *_CASES_HEAD, *rows, ""]
    return lines


def _of(case: Case | OfflineCase, runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.name == case.name]


def _missing(runs: Sequence[Run]) -> list[str]:
    known = {run.name for run in runs}
    names = [case.name for case in CASES if case.name not in known]
    names += [case.name for case in OFFLINE_CASES if case.name not in known]
    return [f"Not measured at a commit: {', '.join(names)}.", ""] if names else []


def _heading(words: str, machine: str, runs: Sequence[Run]) -> str:
    """Return the conditions of a table: machine, commits, dates, load."""
    made = [run.origin for run in runs]
    dates = sorted({o["date"] for o in made})
    commits = ", ".join(sorted({o["commit"] for o in made}))
    loads = [o["load_before"] for o in made]
    return (
        f"**{words}.** {machine}. Commits {commits}; {' to '.join(sorted({dates[0], dates[-1]}))}; "
        f"load before a run {min(loads):.1f} to {max(loads):.1f}, {statistics.median(loads):.1f} "
        "in the median."
    )


def _case_row(case: Case, runs: Iterable[Run]) -> str:
    task = TASKS[case.task]
    own = _of(case, runs)
    cells = [f"{task.title}, {task.bar:g}", case.algorithm]
    cells += _async_cells([run for run in own if run.mode == "async"], task.bar)
    cells += _sync_cells([run for run in own if run.mode == "sync"], task.bar)
    return f"| {' | '.join(cells)} |"


def _offline_row(case: OfflineCase, runs: Iterable[Run]) -> str:
    task = TASKS[case.task]
    cells = [f"{task.title}, {task.bar:g}", f"{case.algorithm}, from data"]
    cells += [*_async_cells(_of(case, runs), task.bar), "", "", ""]
    return f"| {' | '.join(cells)} |"


def _async_cells(runs: Sequence[Run], bar: float) -> list[str]:
    if not runs:
        return ["", "", "", "", ""]
    lags = [run.lag_opt_steps for run in runs if run.lag_opt_steps is not None]
    lags_s = [run.lag_s for run in runs if run.lag_s is not None]
    lag = f"{statistics.median(lags):.1f} ({_seconds(statistics.median(lags_s))})" if lags else ""
    return [
        _mean([run.score for run in runs]),
        _reached(runs, bar),
        f"{statistics.median(run.env_steps for run in runs):,.0f}",
        f"{statistics.median(run.wall_s for run in runs):,.1f}",
        lag,
    ]


def _reached(runs: Sequence[Run], bar: float) -> str:
    """Count runs that reached the target in training, and those of them that score below it."""
    reached = [run for run in runs if run.reached]
    below = sum(run.score < bar for run in reached)
    return f"{len(reached)} of {len(runs)}" + (f", {below} scores below" if below else "")


def _sync_cells(runs: Sequence[Run], bar: float) -> list[str]:
    if not runs:
        return ["", "", ""]
    short = "" if all(run.reached for run in runs) else f", at the target {_reached(runs, bar)}"
    return [
        f"{_mean([run.score for run in runs])}{short}",
        f"{statistics.median(run.env_steps for run in runs):,.0f}",
        f"{statistics.median(run.wall_s for run in runs):,.1f}",
    ]


def _duels(words: str, duels: Sequence[Duel], runs: Sequence[Run]) -> list[str]:
    lines = []
    for machine, own in _by_machine(run for run in runs if is_clean(run.origin)).items():
        rows = [row for duel in duels for row in _duel_rows(duel, own)]
        versions = {
            f"{_SIDES[run.mode]} {run.details['version']}" for run in own if run.mode != OURS
        }
        named = ", ".join([machine, *sorted(versions)])
        if rows:
            lines += [_heading(words, named, own), "", *_DUELS_HEAD, *rows, ""]
    return lines


def _duel_rows(duel: Duel, runs: Sequence[Run]) -> list[str]:
    """Return a row for each side, asyncrl's first; none without it or without a peer."""
    sides = {side: [run for run in _of(duel, runs) if run.mode == side] for side in _SIDES}
    ours = sides[OURS]
    if not ours or not any(sides[peer] for peer in duel.peers):
        return []
    return [_duel_row(duel, side, sides[side], ours) for side in _SIDES if sides[side]]


def _duel_row(duel: Duel, side: str, own: Sequence[Run], ours: Sequence[Run]) -> str:
    task, each = TASKS[duel.task], duel.per_update.get(side, 1)
    opt_steps = statistics.median(run.opt_steps for run in own) * each
    seconds = [run.wall_s for run in own]
    threads = own[0].details.get("settings", {}).get("threads", 1)
    spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
    cells = [
        f"{task.title}, {duel.algorithm}",
        _SIDES[side],
        f"{statistics.median(run.env_steps for run in own):,.0f}",
        f"{opt_steps:,.0f}" if opt_steps else "not counted",
        duel.sizes[side],
        "2 (learner and 2 actors)" if side == OURS else str(threads),
        _mean([run.score for run in own]),
        f"{statistics.median(seconds):.1f} ({spread})",
        *(("", "") if side == OURS else _verdicts(own, ours, abs(task.bar - task.random))),
    ]
    return f"| {' | '.join(cells)} |"


def _verdicts(own: Sequence[Run], ours: Sequence[Run], span: float) -> tuple[str, str]:
    """Return asyncrl's speed-up by medians, and whether it scores no worse.

    A ratio is shown only with the updates of both sides.
    """
    ratio = statistics.median(r.wall_s for r in own) / statistics.median(r.wall_s for r in ours)
    fine = no_worse([run.score for run in ours], [run.score for run in own], span)
    counted = all(run.opt_steps for run in (*own, *ours))
    verdict = "yes" if fine else "**no**"
    if min(len(own), len(ours)) < _SEEDS_TO_JUDGE:
        verdict = "too few seeds"
    return f"**{ratio:.2f}**" if counted else "", verdict


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
