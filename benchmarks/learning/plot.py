"""Draws the learning curves: a panel for each task, a line for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.learning.runs import Run
from benchmarks.learning.tasks import CASES, TASKS

Colour = tuple[float, ...]
Numbers = npt.NDArray[np.float64]

_COLUMNS = 3
_PANEL = (4.6, 3.3)
"""Inches."""

_COLOURS: Sequence[Colour] = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
_BAR_COLOUR = "#777777"
_POINTS = 200

_ALGORITHMS = list(dict.fromkeys(case.algorithm for case in CASES))
"""The same colour in all panels; algorithms that share one never share a panel."""


def draw(runs: Sequence[Run]) -> Figure:
    """Return the picture of all runs."""
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
        "Mean greedy return over environment steps. Thin: each seed, with two actors, until the bar"
        " (dot) or its budget (cross).\nBold: their mean. Dotted: the same in one process.",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_task(axis: Axes, task: str, runs: Sequence[Run]) -> None:
    shown: dict[str, Line2D] = {}
    for algorithm in _ALGORITHMS:
        colour = _COLOURS[_ALGORITHMS.index(algorithm) % len(_COLOURS)]
        own = [run for run in runs if run.algorithm == algorithm]
        for run in own:
            _draw_run(axis, run, colour)
        if several := [run for run in own if run.mode == "async"]:
            (shown[algorithm],) = axis.plot(*_mean(several), color=colour, linewidth=2.0)
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
    axis.legend([*shown.values()], [*shown], fontsize=8, frameon=False, loc="lower right")
    for edge in ("top", "right"):
        axis.spines[edge].set_visible(False)


def _draw_run(axis: Axes, run: Run, colour: Colour) -> None:
    steps, scores = _curve(run)
    style = ":" if run.mode == "sync" else "-"
    axis.plot(steps, scores, color=colour, linewidth=0.9, linestyle=style, alpha=0.4)
    axis.plot(steps[-1:], scores[-1:], "o" if run.reached else "x", color=colour, markersize=4)


def _mean(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    """Return steps and mean scores; a run that has ended counts with its last score."""
    curves = [_curve(run) for run in runs]
    first, last = max(curve[0][0] for curve in curves), max(curve[0][-1] for curve in curves)
    steps = np.linspace(first, last, _POINTS)
    return steps, np.mean([np.interp(steps, *curve) for curve in curves], axis=0)


def _curve(run: Run) -> tuple[Numbers, Numbers]:
    """Return steps and scores up to the bar, without evaluations that were under way by then."""
    steps, _, scores = np.array(run.curve).T
    above = np.flatnonzero(scores >= TASKS[run.task].bar)
    end = above[-1] + 1 if run.reached and len(above) else None
    return steps[:end], scores[:end]
