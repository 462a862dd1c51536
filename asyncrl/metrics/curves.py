"""Draws what was recorded, for a look at it. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record, axis_of


def draw(records: Sequence[Record], names: Sequence[str], axis: str | None) -> Any:  # noqa: ANN401  # a figure
    """Draw metrics over an axis, each from the records that hold it; return the figure.

    Without an axis, it is that of the last record.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an optional package
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install 'asyncrl[plot]'") from error
    axis = axis or axis_of(records[-1] if records else {})

    class NotebookFigure(Figure):
        """Notebooks show it as a picture, whether or not pyplot is loaded."""

        def _repr_png_(self) -> bytes:
            picture = BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = NotebookFigure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for name in names:
        rows = [record for record in records if name in record]
        axes.plot([row[axis] for row in rows], [row[name] for row in rows], label=name)
    axes.set_xlabel(axis)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
