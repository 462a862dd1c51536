"""One HTML page with charts, complete in itself: it loads nothing and sends nothing.

A policy in the page lets the browser run and style by exactly the script and the style sheet of
this package, which it knows by their hashes. All texts are escaped. Knows nothing about runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

_DIGITS = 5
"""Significant digits of a point: more than a screen shows."""

Cell = str | float | None


class Charts:
    """Charts of a page: figures for its body, and their data."""

    def __init__(self, axes: Mapping[str, str]) -> None:
        self._axes = axes
        self._positions: list[Mapping[str, list[float]]] = []
        self._charts: list[dict[str, Any]] = []

    def positions(self, at: Mapping[str, Iterable[float]]) -> int:
        """Add positions of points on each axis, and return their number, for `line`."""
        rounded = {axis: [_rounded(x) or 0.0 for x in xs] for axis, xs in at.items()}
        self._positions.append(rounded)
        return len(self._positions) - 1

    def figure(
        self,
        title: str,
        lines: Sequence[Mapping[str, Any]],
        *,
        note: str = "",
        wide: bool = False,
        stacked: bool = False,
        marks: Sequence[Mapping[str, float]] = (),
    ) -> str:
        """Add a chart and return its figure; an empty string if no line has points."""
        lines = [line for line in lines if any(y is not None for y in line["y"])]
        if not lines:
            return ""
        name = f"chart-{len(self._charts)}"
        self._charts.append(
            {"id": name, "series": lines, "wide": wide, "stacked": stacked, "marks": list(marks)}
        )
        spoken = "; ".join(_spoken(line) for line in lines)
        caption = f"{escape(title)}<small>{escape(note)}</small>" if note else escape(title)
        shape = " class=wide" if wide else ""
        label = escape(f"{title}. {spoken}")
        return (
            f'<figure id="{name}" role=group{shape} aria-label="{label}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws."""
        return {"axes": self._axes, "xs": self._positions, "charts": self._charts}


def line(
    label: str,
    positions: int,
    values: Iterable[float | None],
    *,
    band: tuple[str, Iterable[float | None], Iterable[float | None]] | None = None,
    colour: int | None = None,
    dash: bool = False,
) -> dict[str, Any]:
    """Return a line of a chart; `band` names a range around it, with its low and high values."""
    drawn: dict[str, Any] = {"label": label, "x": positions, "y": [*map(_rounded, values)]}
    if colour is not None:
        drawn["colour"] = colour
    if dash:
        drawn["dash"] = True
    if band is not None:
        name, low, high = band
        drawn |= {"range": name, "low": [*map(_rounded, low)], "high": [*map(_rounded, high)]}
    return drawn


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table; cells that are numbers are aligned to the right."""
    rows = list(rows)
    numeric = [all(not isinstance(row[k], str) for row in rows) for k in range(len(header))]
    kind = ["class=number" if is_number else "" for is_number in numeric]
    head = "".join(f"<th {k}>{escape(name)}</th>" for name, k in zip(header, kind, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td {k}>{escape(text(c))}</td>" for c, k in zip(row, kind, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def histogram(title: str, note: str, counts: Mapping[str, float]) -> str:
    """Return a figure with a bar for each name, whose length is its share of all."""
    total, most = sum(counts.values()), max(counts.values())
    rows = "".join(
        f"<tr><td class=number>{escape(name)}</td><td><svg aria-hidden=true>"
        f'<rect width="{100 * n / most:.1f}%" height="100%"/></svg></td>'
        f"<td class=number>{n / total:.1%}</td></tr>"
        for name, n in counts.items()
    )
    return (
        f"<figure class=bars><figcaption>{escape(title)}<small>{escape(note)}</small></figcaption>"
        f"<table>{rows}</table></figure>"
    )


def numbers(pairs: Mapping[str, Cell]) -> str:
    """Return names with values, as a row of cards."""
    cards = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(text(value))}</dd></div>"
        for name, value in pairs.items()
    )
    return f"<dl class=numbers>{''.join(cards)}</dl>"


def code(content: str) -> str:
    """Return lines of a program or a terminal."""
    return f"<pre>{escape(content)}</pre>"


def details(title: str, content: str) -> str:
    """Return a section that opens at a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def film(name: str, content: bytes) -> str:
    """Return a video, which the page contains."""
    data = base64.b64encode(content).decode()
    return (
        f"<figure class=film><figcaption>{escape(name)}</figcaption><video controls loop "
        f'aria-label="{escape(name)}" src="data:video/mp4;base64,{data}"></video></figure>'
    )


def axis_switch(axes: Mapping[str, str], first: str) -> str:
    """Return the choice of the axis of all charts; `first` is chosen."""
    choices = "".join(
        f'<label><input type=radio name=axis value="{escape(axis)}"{" checked" * (axis == first)}> '
        f"{escape(name)}</label>"
        for axis, name in axes.items()
    )
    return f"<fieldset><legend>Charts over</legend>{choices}</fieldset>"


def text(cell: Cell) -> str:
    """Return a cell as text: whole numbers with separators, others with four digits."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "-"
    if isinstance(cell, str):
        return cell
    if cell == int(cell) or abs(cell) >= 1e3:
        return f"{cell:,.0f}"
    return f"{cell:.4g}"


class Page(NamedTuple):
    """A page: its title, its body, and the data of its charts."""

    title: str
    body: str
    data: Mapping[str, Any]

    def html(self, *, updates: str = "") -> str:
        """Return the whole page. `updates` is the address of later states of it, if there are."""
        script = _asset("uPlot.iife.min.js") + "\n" + _asset("report.js")
        style = _asset("uPlot.min.css") + "\n" + _asset("report.css")
        policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
        policy += "; media-src data:"
        icon = ""
        if updates:
            policy += "; connect-src 'self'; img-src data:"
            icon = "<link rel=icon href='data:,'>\n"  # otherwise browsers ask the server for one
        data = {**self.data, "updates": updates} if updates else self.data
        # "<" would end the element early where a name contains "</script>".
        inlined = _json(data).replace("<", "\\u003c")
        return (
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
            f'<meta http-equiv=Content-Security-Policy content="{policy}">\n'
            "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
            f"{icon}<title>{escape(self.title)}</title>\n<style>{style}</style>\n</head>\n"
            f"<body>\n<main>\n{self.body}\n</main>\n"
            f"<script type=application/json id=data>{inlined}</script>\n"
            f"<script>{script}</script>\n</body>\n</html>\n"
        )

    def update(self) -> str:
        """Return a line from which the script of an open page makes it this one."""
        return _json({"body": self.body, "data": self.data})


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _asset(name: str) -> str:
    return (files("asyncrl.tools.report") / "assets" / name).read_text(encoding="utf-8").strip()


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def _spoken(drawn: Mapping[str, Any]) -> str:
    """Return a line as a sentence, for those who hear the page."""
    values = [value for value in drawn["y"] if value is not None]
    return (
        f"{drawn['label']}: from {text(values[0])} to {text(values[-1])}, "
        f"lowest {text(min(values))}, highest {text(max(values))}"
    )
