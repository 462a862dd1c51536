"""The report of several runs: those that differ only in their seed form one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, permutations
from typing import Any

import numpy as np

from asyncrl.tools.report.curves import AXES, Curves
from asyncrl.tools.report.one_run import evaluations, learning_lines
from asyncrl.tools.report.page import Cell, Charts, Page, axis_switch, line, table
from asyncrl.tools.report.run_files import RECORDS, RunFiles, differences, usual_axis
from asyncrl.tools.report.statistics import (
    Floats,
    centre,
    centre_name,
    improvement,
    interval,
    on_common_steps,
)

_NO_GROUP = ("seed", "max_seconds")
"""Ends of the names of settings that runs of one group may differ in."""

FEWEST_FOR_INTERVAL = 2
"""A group of one run has no interval."""


def report_of_runs(runs: Sequence[RunFiles]) -> str:
    """Return the page of several runs."""
    groups = grouped(runs)
    charts = Charts(AXES)
    parts = [
        f"<h1>{len(runs)} runs</h1>",
        "<p class=faint>Runs of a group differ only in seed and max_seconds.</p>",
        axis_switch(AXES, usual_axis(runs)),
        f"<h2>Learning</h2><div class=charts>{''.join(_figures(groups, charts))}</div>",
        f"<h2>Groups</h2>{_groups_table(groups)}{_improvements(groups)}",
        f"<h2>Runs</h2>{_runs_table(groups)}",
        _settings(runs),
    ]
    return Page(f"{len(runs)} runs - asyncrl", "\n".join(parts), charts.data).html()


@dataclass
class Group:
    """Runs with the same settings, but for the seed."""

    name: str
    runs: list[RunFiles]

    @cached_property
    def curves(self) -> list[Curves]:
        """The records of each run."""
        return [Curves.of_file(run.path / RECORDS) for run in self.runs]

    @property
    def scores(self) -> Floats:
        """The best scores of the runs that have one."""
        return np.asarray([run.score for run in self.runs if run.score is not None], np.float64)

    @property
    def seconds_to_bar(self) -> list[float]:
        """Times to the bar, of the runs that reached theirs."""
        found = (run.summary.get("seconds_to_stop_bar") for run in self.runs)
        return [float(seconds) for seconds in found if seconds is not None]

    def on_common(self, axis: str) -> tuple[Floats, Floats] | None:
        """Return common positions, and there the evaluations of each run that has some.

        None without any, and without a common stretch.
        """
        found = []
        for curves in self.curves:
            at, (scores,) = evaluations(curves, "eval_reward")
            if scores:
                found.append((at[axis], [score for score in scores if score is not None]))
        if not found:
            return None
        positions, values = on_common_steps(found)
        return (positions, values) if len(positions) else None


def grouped(runs: Sequence[RunFiles]) -> list[Group]:
    """Return the groups, each named by algorithm, environment and settings, where these differ.

    Settings are compared among runs of one algorithm and environment. Of those that always change
    together, the name has the first.
    """
    agents, envs = {run.agent for run in runs}, {run.env for run in runs}
    kinds: defaultdict[str, list[RunFiles]] = defaultdict(list)
    for run in runs:
        kind = run.agent if len(agents) > 1 else ""
        kinds[f"{kind} on {run.env}".strip() if len(envs) > 1 else kind].append(run)
    found: defaultdict[str, list[RunFiles]] = defaultdict(list)
    for kind, members in kinds.items():
        for run, values in zip(members, _distinct(members), strict=True):
            parts = [kind] * bool(kind) + values
            found[", ".join(parts) or f"{run.agent} on {run.env}"].append(run)
    return [Group(name, members) for name, members in found.items()]


def _distinct(runs: Sequence[RunFiles]) -> list[list[str]]:
    """Return, for each run, the settings by which the groups differ."""
    kept: list[list[str]] = [[] for _ in runs]
    for name, values in differences([run.config for run in runs]).items():
        if name.endswith(_NO_GROUP):
            continue
        more = [[*one, f"{name}={value}"] for one, value in zip(kept, values, strict=True)]
        if len(set(map(str, more))) > len(set(map(str, kept))):
            kept = more
    return kept


def _figures(groups: Sequence[Group], charts: Charts) -> Iterator[str]:
    note = "the shaded range is the bootstrapped 95 % interval of each group"
    lines = [one for k, group in enumerate(groups) for one in _group_lines(group, charts, k)]
    shaded = any("range" in one for one in lines)
    yield charts.figure("Return of an evaluation", lines, note=note if shaded else "", wide=True)
    yield charts.figure(
        "Every run",
        [
            one
            for run, curves, colour in _members(groups)
            for one in learning_lines(charts, curves, colour, run.path.name)
        ],
        note="coloured by group" if len(groups) > 1 else "",
    )
    placed = [
        (run.path.name, curves, charts.positions({a: curves.axis(a) for a in AXES}), colour)
        for run, curves, colour in _members(groups)
    ]
    for title, metric in (
        ("Environment steps per second", "fps"),
        ("Optimisation steps per second", "opt_steps_per_sec"),
    ):
        yield charts.figure(
            title,
            [line(name, at, curves.points(metric), colour=c) for name, curves, at, c in placed],
        )


def _group_lines(group: Group, charts: Charts, colour: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each axis: runs at equal steps are others than runs at equal times."""
    for axis in AXES:
        found = group.on_common(axis)
        if found is not None:
            at, values = found
            band = None
            if len(values) >= FEWEST_FOR_INTERVAL:
                low, high = interval(values)
                band = ("interval", list(low), list(high))
            positions = charts.positions({axis: list(at)})
            yield line(group.name, positions, list(centre(values)), band=band, colour=colour)


def _members(groups: Sequence[Group]) -> Iterator[tuple[RunFiles, Curves, int]]:
    """Yield each run with its records and its colour: that of its group, if there are several."""
    number = count()
    for k, group in enumerate(groups):
        for run, curves in zip(group.runs, group.curves, strict=True):
            yield run, curves, k if len(groups) > 1 else next(number)


def _groups_table(groups: Sequence[Group]) -> str:
    header = ["group", "runs", "best score", "of", "95 % interval", "to the bar (s)", "reached"]
    rows: list[list[Cell]] = []
    for group in groups:
        scores, seconds = group.scores, group.seconds_to_bar
        bounds = ""
        if len(scores) >= FEWEST_FOR_INTERVAL:
            low, high = interval(scores)
            bounds = f"{float(low):.4g} to {float(high):.4g}"
        rows.append(
            [
                group.name,
                len(group.runs),
                float(centre(scores)) if len(scores) else None,
                centre_name(len(scores)),
                bounds,
                float(np.median(seconds)) if seconds else None,
                f"{len(seconds)} of {len(group.runs)}",
            ]
        )
    return table(header, rows)


def _improvements(groups: Sequence[Group]) -> str:
    """Return how probably a run of one group scores higher than one of another."""
    rows: list[list[Cell]] = []
    for ours, others in permutations(groups, 2):
        if min(len(ours.scores), len(others.scores)) >= FEWEST_FOR_INTERVAL:
            share = improvement(ours.scores, others.scores)
            rows.append([ours.name, others.name, f"{share:.0%}"])
    header = ["a run of", "scores higher than one of", "probability"]
    return f"<h3>Probability of improvement</h3>{table(header, rows)}" if rows else ""


def _runs_table(groups: Sequence[Group]) -> str:
    header = ["run", "group", "state", "best score", "time (s)", "env steps", "opt steps"]
    rows: list[list[Cell]] = [
        [
            str(run.path),
            group.name,
            run.state,
            run.score,
            *(run.number(name) for name in ("wall_s", "env_steps", "opt_steps")),
        ]
        for group in groups
        for run in group.runs
    ]
    return table(header, rows)


def _settings(runs: Sequence[RunFiles]) -> str:
    found = differences([run.config for run in runs])
    if not found:
        return ""
    rows = [[name, *map(str, values)] for name, values in found.items()]
    return "<h2>Settings that differ</h2>" + table(
        ["setting", *(run.path.name for run in runs)], rows
    )
