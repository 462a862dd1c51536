"""Draws results/peers.png: the speed of each peer relative to asyncrl.

python -m benchmarks.peers.plot
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import RESULTS
from benchmarks.peers.interface import UNITS
from benchmarks.peers.results import (
    LABELS,
    OURS,
    TITLES,
    Found,
    Quantity,
    find,
    load_measurements,
    quantities,
    shown,
)

COLUMNS = 3
OURS_COLOUR, PEER_COLOUR, SPREAD_COLOUR = "#0b6e4f", "#9aa5b1", "#33404d"


def draw(found: Mapping[Quantity, Mapping[str, Found]]) -> Figure:
    """Return the figure: a panel for each quantity, a bar for each side."""
    panels = [quantity for quantity in found if OURS in found[quantity]]
    n_rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(15, 2.9 * n_rows + 0.9), layout="constrained")
    axes = figure.subplots(n_rows, COLUMNS, squeeze=False)
    for axis, quantity in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, quantity, found[quantity])
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.suptitle(
        "Speed on two cores relative to asyncrl, on a logarithmic scale: longer is faster. "
        "The lines are the rounds' lowest and highest.",
        fontsize=12,
    )
    return figure


def _draw_panel(axis: Axes, quantity: Quantity, sides: Mapping[str, Found]) -> None:
    shown = [side for side in LABELS if side in sides]
    speeds = [_speed(sides[side]) for side in shown]
    places = range(len(shown))
    drawable = [speed for speed in speeds if 0 < speed < math.inf]
    left = min([*drawable, 0.5]) / 2.5
    for place, side, speed in zip(places, shown, speeds, strict=True):
        colour = OURS_COLOUR if side == OURS else PEER_COLOUR
        there = 0 < speed < math.inf
        if there:
            axis.barh(place, speed - left, left=left, color=colour, height=0.72)
            _draw_spread(axis, place, sides[side])
        axis.text(
            max(speed, *_speeds(sides[side]), left) * 1.12 if there else left * 1.12,
            place,
            _label(sides[side], quantity),
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            fontsize=9,
            fontweight="bold" if side == OURS else "normal",
        )
    axis.axvline(1.0, color=OURS_COLOUR, linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_xlim(left, max([*drawable, 1.0]) * (max([*drawable, 1.0]) / left) ** 0.55)
    axis.set_yticks(list(places), [LABELS[side] for side in shown], fontsize=10)
    axis.invert_yaxis()
    axis.set_title(f"{_title(quantity)} ({UNITS[quantity.stage]})", fontsize=11, loc="left")
    axis.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}x"))
    axis.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    for edge in ("top", "right"):
        axis.spines[edge].set_visible(False)


def _draw_spread(axis: Axes, place: int, found: Found) -> None:
    speeds = [speed for speed in _speeds(found) if 0 < speed < math.inf]
    if found.side != OURS and len(speeds) > 1:
        axis.plot([min(speeds), max(speeds)], [place, place], color=SPREAD_COLOUR, linewidth=1.5)


def _speed(found: Found) -> float:
    """Return the speed as a multiple of asyncrl's; 0 if missing."""
    if math.isnan(found.median) or math.isinf(found.median):
        return 0.0
    if math.isnan(found.ahead):
        return 0.0
    return 1.0 / found.ahead if found.ahead else math.inf


def _speeds(found: Found) -> Sequence[float]:
    return [1.0 / ahead for ahead in found.ahead_by_round if ahead] or [_speed(found)]


def _title(quantity: Quantity) -> str:
    env = quantity.env.removeprefix("ALE/")
    return f"{TITLES[quantity.stage].partition(',')[0]}, {env}"


def _label(found: Found, quantity: Quantity) -> str:
    if math.isnan(found.median):
        return "could not be measured"
    if math.isinf(found.median):
        return "not reached"
    digits = 1 if quantity.less_is_better else 0
    value = f"{found.median:,.{digits}f}"
    return value if found.side == OURS else f"{value}  ({_speed(found):.2g}x)"


def main() -> None:
    """Read the measurements and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    _, measured = load_measurements(args.results / "peers.json")
    taken = shown(measured)
    if not taken:
        raise SystemExit(
            f"{args.results}/peers.json has nothing to show: run benchmarks.peers.compare"
        )
    path = args.results / "peers.png"
    draw({quantity: find(taken, quantity) for quantity in quantities()}).savefig(path, dpi=110)
    print(path)


if __name__ == "__main__":
    main()
