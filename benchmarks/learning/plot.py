"""Draws the learning curves: a panel for each task, a line for each run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.learning.runs import Run
from benchmarks.learning.tasks import CASES, TASKS

__all__ = ["draw"]

_COLUMNS = 3
_PANEL = (4.6, 3.3)
"""Inches."""

_COLOURS: Sequence[str] = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
_BAR_COLOUR = "#777777"


def draw(runs: Sequence[Run]) -> Figure:
    """Return the picture of all asynchronous runs, and dotted the synchronous ones."""
    tasks = [task for task in TASKS if any(run.task == task and run.curve for run in runs)]
    if not tasks:
        raise SystemExit("no run is kept yet, so there is nothing to draw")
    columns = min(_COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    size = (_PANEL[0] * columns, _PANEL[1] * rows + 0.7)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, task in zip(grid.flat, tasks, strict=False):
        _draw_task(axis, task, [run for run in runs if run.task == task and run.curve])
    for axis in grid.flat[len(tasks) :]:
        axis.set_visible(False)
    figure.suptitle(
        "Mean greedy return over environment steps. Each solid line is a run with\n"
        "two actors, each dotted one a run in one process; it ends at the bar or at its budget.",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_task(axis: Axes, task: str, runs: Iterable[Run]) -> None:
    algorithms = list(dict.fromkeys(case.algorithm for case in CASES if case.task == task))
    shown: dict[str, Line2D] = {}
    for run in runs:
        colour = _COLOURS[algorithms.index(run.algorithm) % len(_COLOURS)]
        steps, _, scores = np.array(run.curve).T
        alone = run.mode == "sync"
        (line,) = axis.plot(
            steps,
            scores,
            color=colour,
            linewidth=1.1 if alone else 1.5,
            linestyle=":" if alone else "-",
            alpha=0.9,
        )
        marker = "o" if run.reached else "x"
        axis.plot(steps[-1:], scores[-1:], marker, color=colour, markersize=5)
        shown.setdefault(run.algorithm, line)
    bar = TASKS[task].bar
    axis.axhline(bar, color=_BAR_COLOUR, linewidth=0.9, linestyle="--", zorder=0)
    axis.text(
        0.01,
        bar,
        f"{bar:g}",
        transform=axis.get_yaxis_transform(),
        color=_BAR_COLOUR,
        va="bottom",
        fontsize=8,
    )
    axis.set_title(TASKS[task].title, fontsize=11, loc="left")
    axis.set_xlabel("environment steps", fontsize=9)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    axis.tick_params(labelsize=8)
    order = sorted(shown, key=algorithms.index)
    axis.legend([shown[name] for name in order], order, fontsize=8, frameon=False)
    for edge in ("top", "right"):
        axis.spines[edge].set_visible(False)
