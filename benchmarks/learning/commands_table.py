"""The tables of the commands as typed: a whole one, and a short one for the first page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.common import PAGE, ROOT, is_clean, publish
from benchmarks.learning.freshness import machines
from benchmarks.learning.rows import ROWS, Row
from benchmarks.learning.runs import Run

MARKS = "<!-- commands: written by learning/commands.py -->", "<!-- end of commands -->"
OURS, PEER, ZOO = "asyncrl", "sb3", "zoo"

_MISSED = float("inf")
_WHOLE = (
    "task, bar",
    "preset",
    "seconds of the run",
    "of the command",
    "CPU seconds",
    "env steps",
    "at the bar",
    "Stable-Baselines3, equal settings",
    "CPU seconds",
    "env steps",
    "at the bar",
    "times as fast",
    "with its zoo's settings",
    "at the bar",
    "times as fast",
)
_SHORT = (
    "task, return",
    "asyncrl",
    "Stable-Baselines3, equal settings",
    "times as fast",
    "with its zoo's settings",
    "times as fast",
)

_INTRODUCTION = (
    "Seconds of training to a return on 2 cores with `asyncrl train --env ID`, which chooses agent "
    "and settings. Medians over seeds, in turns with Stable-Baselines3 as fast as it can be at the "
    "same algorithm. Its evaluations do not count; ours do. Its zoo's settings had fewer seeds."
)

PICTURE = ROOT / "docs" / "assets" / "curves.svg"
"""Written by `picture.py`, with one for dark pages beside it."""

_PICTURE = (
    '<picture><source media="(prefers-color-scheme: dark)" srcset="docs/assets/curves-dark.svg">'
    '<img alt="Returns over seconds, six tasks" src="docs/assets/curves.svg"></picture>\n'
)
_ONLY_WHOLE = "cartpole acrobot mountaincar mountaincar-continuous pendulum taxi pong".split()
"""Tasks that only the whole table has."""


class Side:
    """The runs of one side of a row."""

    def __init__(self, row: Row, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._limit_s = row.max_s
        self.s = self.median(lambda run: run.wall_s)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def median(self, number: Callable[[Run], float]) -> float:
        """Return a median; a run that missed the bar counts as more than all others."""
        numbers = [number(run) if run.reached else _MISSED for run in self.runs]
        return statistics.median(numbers) if numbers else _MISSED

    def median_text(self, number: Callable[[Run], float], digits: int = 1) -> str:
        """Write a median."""
        median = self.median(number)
        return f"{median:,.{digits}f}" if median < _MISSED else ""

    def seconds(self) -> str:
        """Write the seconds of the run, or that it takes longer than its limit or budget."""
        if not self:
            return ""
        return f"{self.s:.1f}" if self.s < _MISSED else f"not within {self.until_s():.0f}"

    def until_s(self) -> float:
        """Return when runs that missed the bar ended, at the latest at the limit."""
        ends = [min(run.wall_s, self._limit_s) for run in self.runs if not run.reached]
        return statistics.median(ends)

    def share(self) -> str:
        return f"{sum(run.reached for run in self.runs)} of {len(self.runs)}" if self else ""

    def times(self, other: Side) -> float:
        """Return how many times as fast this side is, or at least is; 0 if nothing can be said."""
        if not self or not other or self.s == _MISSED:
            return 0.0
        return (other.s if other.s < _MISSED else other.until_s()) / self.s

    def times_text(self, other: Side) -> str:
        """Write it, in bold if it is faster."""
        times = self.times(other)
        if not times or (other.s == _MISSED and times < 1.0):
            return ""
        text = f"{'> ' if other.s == _MISSED else ''}{times:.1f}"
        return f"**{text}**" if times > 1.0 else text


def sides(runs: Sequence[Run]) -> Iterator[tuple[str, Row, Side, Side, Side]]:
    """Yield the rows that have been run, with three sides; of the processor with most runs."""
    clean = [run for run in runs if is_clean(run.origin)]
    for name, row in ROWS.items():
        of_row = [run for run in clean if run.task == name]
        if not any(run.mode == OURS for run in of_row):
            continue
        common = statistics.mode(run.origin["machine"]["processor"] for run in of_row)
        here = [run for run in of_row if run.origin["machine"]["processor"] == common]
        own, equal, zoo = (Side(row, [r for r in here if r.mode == m]) for m in (OURS, PEER, ZOO))
        yield name, row, own, equal, zoo


def render(runs: Sequence[Run]) -> str:
    """Return the whole table, and where asyncrl is not faster."""
    lines = ["", *_head(_WHOLE)]
    for _, row, own, equal, zoo in sides(runs):
        cells = [
            _title(row),
            own.runs[0].algorithm,
            own.seconds(),
            own.median_text(lambda run: run.details["whole_s"]),
            own.median_text(lambda run: run.details["cpu_s"], 0),
            own.median_text(lambda run: run.env_steps, 0),
            own.share(),
            equal.seconds(),
            equal.median_text(lambda run: run.details["cpu_s"], 0),
            equal.median_text(lambda run: run.env_steps, 0),
            equal.share(),
            own.times_text(equal),
            zoo.seconds(),
            zoo.share(),
            own.times_text(zoo),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    shown = [{"origin": run.origin} for run in runs if is_clean(run.origin)]
    return "\n".join([*lines, "", not_faster(runs), "", *machines(shown), ""])


def render_short(runs: Sequence[Run]) -> str:
    """Return the table for readers who have just come."""
    rows = []
    for name, row, own, equal, zoo in sides(runs):
        if name in _ONLY_WHOLE:
            continue
        texts = [own.times_text(equal), zoo.seconds(), own.times_text(zoo)]
        rows.append([_title(row), own.seconds(), equal.seconds(), *texts])
    lines = [f"{_INTRODUCTION} {not_faster(runs)}".rstrip(), ""]
    lines += [_PICTURE] if PICTURE.exists() else []
    lines += _head(_SHORT)
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def not_faster(runs: Sequence[Run]) -> str:
    """Return a sentence about the rows in which asyncrl is not faster, or that are missing."""
    slower, missed, lacking = [], [], [*map(_title, ROWS.values())]
    for _, row, own, equal, zoo in sides(runs):
        lacking.remove(_title(row))
        times = [own.times(side) for side in (equal, zoo) if side and side.s < _MISSED]
        if own.s == _MISSED:
            missed.append(_title(row))
        elif times and min(times) <= 1.0:
            slower.append(f"{_title(row)} ({min(times):.1f} times as fast)")
    parts = []
    if slower:
        parts.append(f"asyncrl is not faster on {'; '.join(slower)}.")
    if missed:
        parts.append(f"It misses the bar with half of the seeds or more on {'; '.join(missed)}.")
    if lacking:
        parts.append(f"Not measured with today's settings: {'; '.join(lacking)}.")
    return " ".join(parts)


def write_tables(runs: Sequence[Run]) -> None:
    """Write both tables into their pages."""
    publish(PAGE, render(runs), MARKS)
    publish(ROOT / "README.md", render_short(runs), MARKS)


def _head(titles: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", f"| {' | '.join('---' for _ in titles)} |"]


def name_of(row: Row) -> str:
    """Return the short name of a row's environment."""
    name = row.env.rpartition(":")[2].removeprefix("ALE/")
    return "MinAtar Breakout" if name == "minatar_breakout" else name


def _title(row: Row) -> str:
    return f"{name_of(row)}, {row.bar:g}"
