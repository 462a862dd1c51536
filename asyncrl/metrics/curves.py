"""Draws what was recorded, for a look at it. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.core.errors import ConfigError


def draw(records: Sequence[Mapping[str, float]], names: Sequence[str], axis: str) -> Any:  # noqa: ANN401  # a figure
    """Draw metrics over an axis, each from the records that hold it; return the figure."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an optional package
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install 'asyncrl[plot]'") from error
    figure = Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for name in names:
        rows = [record for record in records if name in record]
        axes.plot([row[axis] for row in rows], [row[name] for row in rows], label=name)
    axes.set_xlabel(axis)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
