"""Learning curves of runs as a picture for a paper. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.errors import ConfigError
from asyncrl.tools.report.curves import AXES
from asyncrl.tools.report.run_files import RunFiles, usual_axis
from asyncrl.tools.report.several_runs import FEWEST_FOR_INTERVAL, grouped
from asyncrl.tools.report.statistics import centre, interval

SUFFIXES = (".pdf", ".png", ".svg")

_WIDTH_IN, _HEIGHT_IN, _DPI = 5.5, 3.4, 200
_LINE, _LABEL, _LINE_IN = 60, 170, 0.16
"""Characters of a line of the legend and of a name in it, and the height of a line in inches."""

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Okabe and Ito's, which colour-blind readers can distinguish."""


def plot_runs(runs: Sequence[RunFiles], output: Path, axis: str | None = None) -> None:
    """Draw the evaluations of runs, those that differ only in their seed as one curve.

    The format is that of the name's ending, the axis by default that of the report. Raises
    `ConfigError` if no run has an evaluation, or without matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an optional package
    except ImportError as error:
        raise ConfigError(
            "asyncrl plot needs the package matplotlib: pip install 'asyncrl[plot]'"
        ) from error
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    groups, axis = grouped(runs), axis or usual_axis(runs)
    for k, group in enumerate(groups):
        found = group.on_common(axis)
        if found is None:
            continue
        at, values = found
        colour = _COLOURS[k % len(_COLOURS)]
        name = group.name if len(group.name) <= _LABEL else f"{group.name[:_LABEL]}..."
        label = textwrap.fill(f"{name} (n = {len(values)})", _LINE)
        marker = "o" if len(at) == 1 else None  # a line of one point is not seen
        axes.plot(at, centre(values), color=colour, label=label, marker=marker)
        if len(values) >= FEWEST_FOR_INTERVAL:
            axes.fill_between(at, *interval(values), color=colour, alpha=0.2, linewidth=0)
    if not axes.lines:
        raise ConfigError(
            "none of these runs has an evaluation yet, or those of runs that differ only in their "
            "seed lie at no common time; asyncrl report shows the curves of each"
        )
    axes.set_xlabel(f"{AXES[axis]} (s)" if axis == "wall_s" else AXES[axis])
    axes.set_ylabel("return of an evaluation")
    axes.grid(alpha=0.3)
    labels = [str(one.get_label()) for one in axes.lines]
    if any(len(label) > _LINE // 2 for label in labels):  # it would hide the curves
        lines = sum(label.count("\n") + 1 for label in labels)
        figure.set_size_inches(_WIDTH_IN, _HEIGHT_IN + _LINE_IN * lines)
        figure.legend(loc="outside upper left", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(output, dpi=_DPI)
