"""One picture of the table of commands: returns over seconds, beside Stable-Baselines3, six tasks.

    python -m benchmarks.learning.picture

Thin lines are seeds, which end at the bar; bold lines are medians, in which a run that has ended
keeps its last return. It writes an SVG for light pages and one for dark ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.common import make_parser
from benchmarks.learning.commands import DIRECTORY
from benchmarks.learning.commands_table import PICTURE, Side, name_of, sides
from benchmarks.learning.rows import Row
from benchmarks.learning.runs import Run, kept

TASKS = (
    *("halfcheetah-5000", "lunarlander-continuous", "hopper", "walker2d", "ant", "bipedalwalker"),
    *("breakout", "lunarlander", "halfcheetah", "cartpole", "acrobot"),
)
_PANELS = 6
"""The first tasks that have runs of both sides."""
_OURS, _PEER = "asyncrl", "Stable-Baselines3"
_BEHIND = 1.12
"""Seconds that are shown, in units of the slower median."""


class Look(NamedTuple):
    """Colours of a picture."""

    ground: str
    text: str
    faint: str
    ours: str
    peer: str


LOOKS: Mapping[str, Look] = {
    "": Look("#ffffff", "#1f2328", "#d1d9e0", "#0969da", "#bc4c00"),
    "-dark": Look("#0d1117", "#e6edf3", "#30363d", "#58a6ff", "#f0883e"),
}
"""Suffix of a file's name -> how it looks."""


def draw(runs: Sequence[Run], tasks: Sequence[str], look: Look) -> Any:  # noqa: ANN401  # a figure
    """Return a figure with one panel for each task that has runs of both sides."""
    from matplotlib import pyplot  # noqa: PLC0415  # an extra

    pyplot.rcParams["svg.hashsalt"] = PICTURE.stem  # names in an SVG are random without it
    panels = {name: (row, own, equal) for name, row, own, equal, _ in sides(runs) if own and equal}
    chosen = [name for name in tasks if name in panels][:_PANELS]
    across = min(3, len(chosen))
    style: Any = {
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.fonttype": "none",
        "text.color": look.text,
        "axes.labelcolor": look.text,
        "axes.edgecolor": look.faint,
        "xtick.color": look.text,
        "ytick.color": look.text,
        "axes.facecolor": look.ground,
        "figure.facecolor": look.ground,
    }
    with pyplot.rc_context(style):
        down = math.ceil(len(chosen) / across)
        figure, axes = pyplot.subplots(down, across, figsize=(3.2 * across, 2.55 * down + 0.35))
        for axis, name in zip(np.ravel(axes), chosen, strict=False):
            row, own, equal = panels[name]
            _panel(axis, row, {_OURS: own, _PEER: equal}, look)
        for axis in np.ravel(axes)[len(chosen) :]:
            axis.axis("off")
        _legend(figure, look)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (2.55 * down + 0.35)), h_pad=1.4, w_pad=1.6)
    return figure


def _legend(figure: Any, look: Look) -> None:  # noqa: ANN401
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = [
        Line2D([], [], color=look.ours, lw=2.6, label=_OURS),
        Line2D([], [], color=look.peer, lw=2.6, label=f"{_PEER}, equal settings"),
    ]
    figure.legend(handles=handles, loc="upper center", ncols=2, frameon=False, fontsize=10)


def _panel(axis: Any, row: Row, both: Mapping[str, Side], look: Look) -> None:  # noqa: ANN401
    """Draw the curves of a task."""
    colours = {_OURS: look.ours, _PEER: look.peer}
    ends = {name: min(side.s, row.max_s) for name, side in both.items()}
    last, first = _BEHIND * max(ends.values()), min(ends, key=ends.__getitem__)
    axis.axhline(row.bar, color=look.text, lw=0.8, ls=(0, (1, 2)), alpha=0.6)
    for name in (_PEER, _OURS):
        colour, side = colours[name], both[name]
        curves = [_seconds_and_returns(run) for run in side.runs]
        for x, y in curves:
            axis.plot(x, y, color=colour, lw=0.7, alpha=0.35, solid_capstyle="round")
        at = np.linspace(0.0, ends[name], 80)
        median = _median(curves, at)
        if side.s < math.inf:
            median[-1] = max(median[-1], row.bar)  # where half of the runs are at it
        axis.plot(at, median, color=colour, lw=2.4, solid_capstyle="round")
        if side.s < math.inf:
            axis.plot([side.s], median[-1:], "o", color=colour, ms=5.5, mec=look.ground, zorder=5)
            axis.annotate(
                f"{side.s:.0f} s" if side.s >= 10 else f"{side.s:.1f} s",
                (side.s, median[-1]),
                (4 if name != first else 0, 6),
                textcoords="offset points",
                ha="right" if name == first else "center",
                color=colour,
                weight="bold",
                bbox={"fc": look.ground, "ec": "none", "pad": 0.5, "alpha": 0.85},
            )
    times = both[_OURS].times_text(both[_PEER]).strip("*")
    title = f"{name_of(row).partition('-v')[0]}, {row.bar:,g}"
    axis.set_title(title, loc="left", weight="bold", fontsize=9)
    if times:
        axis.set_title(f"{times}\N{MULTIPLICATION SIGN}", loc="right", fontsize=9)
    axis.set_xlim(0, last)
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, row.bar + 0.12 * (row.bar - low)))
    axis.set_xlabel("seconds", labelpad=1)
    axis.grid(axis="y", color=look.faint, lw=0.5, alpha=0.7)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)
    axis.locator_params(nbins=5)
    axis.yaxis.set_major_formatter("{x:,.0f}")


Numbers = npt.NDArray[np.float64]


def _seconds_and_returns(run: Run) -> tuple[Numbers, Numbers]:
    points = [point for point in run.curve if point[1] <= run.wall_s + 1e-6]
    return np.array([s for _, s, _ in points]), np.array([score for _, _, score in points])


def _median(curves: Sequence[tuple[Numbers, Numbers]], at: Numbers) -> Numbers:
    """Return the median of curves where half of them have begun."""
    values = [np.interp(at, x, y, left=np.nan) for x, y in curves if len(x)]
    begun = np.isfinite(values).sum(axis=0) * 2 >= len(values)
    median = np.full(len(at), np.nan)
    median[begun] = np.nanmedian(np.array(values)[:, begun], axis=0)
    return median


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pictures."""
    parser = make_parser(__doc__, results=DIRECTORY)
    parser.add_argument("--tasks", nargs="+", default=[*TASKS])
    parser.add_argument("--to", type=Path, default=PICTURE.parent)
    args = parser.parse_args(argv)
    runs = kept(args.results)
    for suffix, look in LOOKS.items():
        figure = draw(runs, args.tasks, look)
        path = args.to / f"{PICTURE.stem}{suffix}.svg"
        figure.savefig(path, metadata={"Date": None})
        short = re.sub(r"(\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8"))
        path.write_text(short, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
