"""The report of one run: how it scored, what limited it, what happened to its actors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.evaluator import VIDEOS
from asyncrl.core.settings import flatten, to_plain
from asyncrl.metrics.metrics import METRICS, describe
from asyncrl.run.presets import PRESETS
from asyncrl.tools.report.curves import AXES, Curves, Points
from asyncrl.tools.report.page import (
    Cell,
    Charts,
    Page,
    axis_switch,
    code,
    details,
    film,
    histogram,
    line,
    numbers,
    table,
    text,
)
from asyncrl.tools.report.run_files import RECORDS, RunFiles, usual_axis

_MOST_ACTORS = 8
"""A chart with more lines cannot be read."""

_FEWEST_POINTS = 2

_MOST_FILM_BYTES = 20_000_000
"""A page with more is slow to open, and to send."""

_MOST_WARNINGS, _MOST_WARNING_BYTES = 50, 20_000
"""Of a run that warned often, the newest are shown."""

_EXTREMES = ("_min", "_max")
"""Suffixes of the extremes over the steps of a record, of whose mean the name is."""


def report_of_run(run: RunFiles) -> str:
    """Return the page of one run."""
    return page_of_run(run, Curves.of_file(run.path / RECORDS)).html()


def page_of_run(run: RunFiles, curves: Curves) -> Page:
    """Return the page of a run from its files, and from the curves that were read of it."""
    return _OneRun(run, curves).page()


def learning_lines(
    charts: Charts, curves: Curves, colour: int | None = None, label: str = ""
) -> list[dict[str, Any]]:
    """Return the lines of a run's returns, with their range: evaluations, and training episodes.

    An evaluation stands at the steps of the model that it scored. A run with a label is one of
    several: only its evaluations are drawn, without their range.
    """
    lines = []
    at, (scores, lows, highs) = evaluations(
        curves, "eval_reward", "eval/return_min", "eval/return_max"
    )
    if scores:
        band = None if label or None in lows + highs else ("evaluation", lows, highs)
        name = label or "evaluation"
        lines.append(line(name, charts.positions(at), scores, band=band, colour=colour))
    if not (label and lines):
        here = charts.positions({axis: curves.axis(axis) for axis in AXES})
        values, lows, highs = (
            curves.points(f"episode/return_{kind}") for kind in ("mean", "min", "max")
        )
        recorded = not label and any(low is not None for low in lows)
        band = ("training", lows, highs) if recorded else None
        lines.append(line(label or "training", here, values, band=band, colour=colour, dash=True))
    return lines


def evaluations(curves: Curves, *names: str) -> tuple[dict[str, list[float]], list[Points]]:
    """Return the positions of the evaluations on each axis, and their values by these names."""
    rows = list(zip(*(curves.points(name) for name in names), strict=True))
    kept = [k for k, row in enumerate(rows) if row[0] is not None]
    at = {axis: [curves.axis(axis)[k] for k in kept] for axis in AXES}
    versions = [curves.points("eval/model_version")[k] for k in kept]
    steps = curves.axis("opt_steps")
    if kept and None not in versions and steps[-1] > 0:
        at["opt_steps"] = [version or 0.0 for version in versions]
        at["env_steps"] = list(np.interp(at["opt_steps"], steps, curves.axis("env_steps")))
    return at, [[rows[k][column] for k in kept] for column in range(len(names))]


class _OneRun:
    """The sections of a run's page."""

    def __init__(self, run: RunFiles, curves: Curves) -> None:
        self._run = run
        self._curves = curves
        self._charts = Charts(AXES)
        self._here = self._charts.positions({axis: self._curves.axis(axis) for axis in AXES})

    def page(self) -> Page:
        """Return the whole page."""
        name = self._run.path.resolve().name
        sections = [
            f"<h1>{escape(name)}</h1>",
            f"<p class=faint>{escape(self._subtitle())}</p>",
            self._headline(),
            self._failure(),
            axis_switch(AXES, usual_axis([self._run])),
            self._section("Learning", self._learning()),
            self._films(),
            self._warnings(),
            self._section("Where time went", self._time()),
            self._section("Actors and experience", self._experience()),
            self._section("Machine", self._machine()),
            self._section("Settings", self._settings()),
        ]
        return Page(f"{name} - asyncrl", "\n".join(filter(None, sections)), self._charts.data)

    def _subtitle(self) -> str:
        run = self._run
        began = run.starts[0].get("time", "") if run.starts else ""
        resumed = f", resumed {len(run.starts) - 1} times" if len(run.starts) > 1 else ""
        parts = (run.agent, run.env, run.state, f"started {began}{resumed}" if began else "")
        return " · ".join(filter(None, parts))

    def _headline(self) -> str:
        run, summary = self._run, self._run.summary
        cards: dict[str, Cell] = {
            "best score": run.score,
            "at opt step": summary.get("best_opt_steps"),
            "time to the bar (s)": summary.get("seconds_to_stop_bar"),
            "time (s)": run.number("wall_s"),
            "env steps": run.number("env_steps"),
            "opt steps": run.number("opt_steps"),
            "env steps/s": summary.get("env_steps_per_s"),
            "opt steps/s": summary.get("opt_steps_per_s"),
        }
        parts = [numbers({name: value for name, value in cards.items() if value is not None})]
        if verdict := summary.get("verdict"):
            parts.append(f"<p class=verdict>{escape(str(verdict['sentence']))}</p>")
        if reason := summary.get("stop_reason"):
            parts.append(f"<p>Ended because {escape(str(reason))}.</p>")
        start = run.starts[-1] if run.starts else {}
        if isinstance(machine := start.get("machine"), Mapping):
            hardware = [machine.get("processor"), *(machine.get("gpus") or ())]
            if isinstance(cores := machine.get("usable_cores"), int | float):
                hardware.insert(1, f"{cores:g} core{'s' * (cores != 1)}")
            if words := ", ".join(str(one) for one in hardware if one):
                parts.append(f"<p class=faint>On {escape(words)}</p>")
        if command := start.get("command"):
            parts.append(f"<p>Repeat it in {escape(str(start.get('directory')))} by</p>")
            parts.append(code(str(command)))
        return "\n".join(parts)

    def _failure(self) -> str:
        if self._run.state != "failed":
            return ""
        try:
            error = (self._run.path / "error.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        last = error.strip().rpartition("\n")[2]
        return f"<p class=bad>{escape(last)}</p>{details('Traceback', code(error))}"

    def _learning(self) -> Iterator[str]:
        lines = learning_lines(self._charts, self._curves)
        yield self._charts.figure(
            "Return of an episode", lines, note="means with their range", wide=True
        )
        yield self._chart("Success rate", ["eval/success_rate", "episode/success_rate"])
        for name in self._of_agent():
            yield self._chart(name.removeprefix("agent/"), [name])
        yield self._chart("Exploration rate", self._of_actors("exploration_rate"))

    def _films(self) -> str:
        """Return the videos in the run directory, newest first, as far as there is room."""
        if self._run.state == "running":  # its page is sent again and again
            return ""
        shown, room = "", _MOST_FILM_BYTES
        some = "[!.]*.mp4"  # a hidden one is incomplete
        paths = chain(self._run.path.glob(some), (self._run.path / VIDEOS).glob(some))
        for path in sorted(paths, key=_changed_at, reverse=True):
            name = path.name
            if path.parent.name == VIDEOS and path.stem.isdigit():
                name = f"after {int(path.stem):,} optimisation steps"
            with suppress(OSError):  # it has just been removed
                room -= path.stat().st_size
                if room > 0:
                    shown += film(name, path.read_bytes())
        return f"<h2>Videos</h2><div class=charts>{shown}</div>" if shown else ""

    def _time(self) -> Iterator[str]:
        yield self._chart("Environment steps per second", ["fps"])
        yield self._chart("Optimisation steps per second", ["opt_steps_per_sec"])
        for title, prefix in (("Learner", "share/learner_"), ("Actors", "share/actor_")):
            names = [name for name in METRICS if name.startswith(prefix)]
            yield self._chart(title, self._present(names), "shares of time", stacked=True)
        rows = [
            (name.removeprefix("ms/"), self._curves.last(name), METRICS[name].meaning)
            for name in self._present(name for name in METRICS if name.startswith("ms/"))
        ]
        if rows:
            yield table(["call", "ms, last record", ""], rows)

    def _experience(self) -> Iterator[str]:
        sampled = ["lag/versions_mean", "lag/versions_max"]
        yield self._chart("Policy lag of sampled data", sampled, "optimisation steps")
        stored = ["lag/at_insert_mean", "lag/at_insert_max"]
        yield self._chart("Policy lag of stored data", stored, "optimisation steps")
        yield self._lags()
        yield self._chart(
            "Steps per second of each actor",
            self._of_actors("env_steps_per_s"),
            "vertical lines are restarts",
            marks=[restart.at for restart in self._curves.restarts],
        )
        if actors := self._run.summary.get("actors"):
            header = list(dict.fromkeys(name for row in actors.values() for name in row))
            rows = [(actor, *(row.get(name) for name in header)) for actor, row in actors.items()]
            yield table(["actor", *(name.replace("_", " ") for name in header)], rows)
        if ledger := self._run.summary.get("ledger"):
            yield table([name.replace("_", " ") for name in ledger], [list(ledger.values())])

    def _lags(self) -> str:
        bins, last = "lag/histogram/", self._run.last
        newest = {name.removeprefix(bins): last[name] for name in last if name.startswith(bins)}
        recorded: Mapping[str, float] = self._run.summary.get("lag_histogram") or newest
        found = {int(low): n for low, n in recorded.items()}
        if not any(found.values()):
            return ""
        # Each bin begins at twice the one before; those between are empty.
        lows = [0, *(1 << e for e in range(max(found).bit_length()))]
        lows = [low for low in lows if min(found) <= low <= max(found)]
        counts = {text(low): found.get(low, 0) for low in lows}
        note = (
            "since the run was started or resumed; optimisation steps, each bar from its number on"
        )
        return histogram("Policy lag of sampled data", note, counts)

    def _warnings(self) -> str:
        """Return the last lines of the warnings."""
        try:
            with (self._run.path / "warnings.log").open("rb") as file:
                start = max(file.seek(0, os.SEEK_END) - _MOST_WARNING_BYTES, 0)
                file.seek(start)
                lines = file.read().decode(errors="replace").splitlines(keepends=True)
        except OSError:
            return ""
        if start and len(lines) > 1:
            del lines[0]  # its beginning may be missing
        return f"<h2>Warnings</h2>{code(''.join(lines[-_MOST_WARNINGS:]))}" if lines else ""

    def _machine(self) -> Iterator[str]:
        names = ["system/machine_cpu_percent", "system/cpu_percent"]
        names += ["system/children_cpu_percent", "system/gpu_percent"]
        yield self._chart("CPU and GPU use", self._present(names), "percent")
        memory = ["system/rss_bytes", "system/children_rss_bytes", "system/gpu_memory_bytes"]
        yield self._chart("Memory", self._present(memory), "bytes")
        starts = self._run.starts
        if starts and isinstance(machine := starts[-1].get("machine"), Mapping):
            yield table(["", ""], [(key, _flat(value)) for key, value in machine.items()])

    def _settings(self) -> Iterator[str]:
        agent = self._run.agent
        if agent in PRESETS:
            before = dict(flatten(to_plain(PRESETS[agent]())))
            rows = [
                (name, _flat(value), _flat(before.get(name)))
                for name, value in flatten(self._run.config)
                if before.get(name) != value
            ]
            yield table(["differs from the preset", "this run", agent], rows)
        settings = (self._run.path / "config.yaml").read_text(encoding="utf-8")
        yield details("All settings", code(settings))
        yield self._checkpoints()

    def _checkpoints(self) -> str:
        rows = [(path.name, _megabytes(path)) for path in _saved(self._run.path / "checkpoints")]
        return table(["checkpoint", "MB"], rows) if rows else ""

    def _section(self, title: str, parts: Iterable[str]) -> str:
        parts = list(parts)
        figures = [part for part in parts if part.startswith("<figure")]
        others = [part for part in parts if part not in figures]
        body = f"<div class=charts>{''.join(figures)}</div>" if figures else ""
        body += "".join(others)
        return f"<h2>{title}</h2>{body}" if body else ""

    def _chart(
        self,
        title: str,
        names: Iterable[str],
        note: str = "",
        *,
        stacked: bool = False,
        marks: Sequence[Mapping[str, float]] = (),
    ) -> str:
        names = self._present(names)
        if not note and len(names) == 1 and (found := describe(names[0])):
            note = found.unit
        points = {name: self._curves.points(name) for name in names}
        lines = [
            line(_label(name), self._here, values, band=self._range(name, values))
            for name, values in points.items()
            if sum(value is not None for value in values) >= _FEWEST_POINTS
        ]
        return self._charts.figure(title, lines, note=note, stacked=stacked, marks=marks)

    def _range(self, name: str, values: Points) -> tuple[str, Points, Points] | None:
        """Return the lowest and highest values behind the means of a metric, if recorded."""
        low, high = (self._curves.points(name + suffix) for suffix in _EXTREMES)
        if not name.startswith("agent/") or not any(v is not None for v in low):
            return None
        # They are left out of records where they equal the mean.
        low, high = (
            [mean if end is None else end for end, mean in zip(ends, values, strict=True)]
            for ends in (low, high)
        )
        return "range", low, high

    def _of_agent(self) -> list[str]:
        """Return the names of the agent's numbers, without those that are about others of them."""
        names = self._names("agent/")
        about = {name + suffix for name in names for suffix in _EXTREMES} | {"agent/count"}
        return [name for name in names if name not in about]

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._curves.names() if name.startswith(prefix)]

    def _present(self, names: Iterable[str]) -> list[str]:
        recorded = set(self._curves.names())
        return [name for name in names if name in recorded]

    def _of_actors(self, metric: str) -> list[str]:
        names = [name for name in self._names("actor/") if name.endswith(f"/{metric}")]
        return sorted(names, key=_slot)[:_MOST_ACTORS]


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _slot(name: str) -> int:
    slot = name.split("/")[1]
    return int(slot) if slot.isdigit() else 0


def _label(name: str) -> str:
    """Return a metric's name as a chart shows it."""
    if name.startswith("actor/"):
        return f"actor {_slot(name)}"
    for prefix in ("share/learner_", "share/actor_", "agent/", "lag/", "system/"):
        name = name.removeprefix(prefix)
    return name


def _flat(value: object) -> str:
    if isinstance(value, float):
        return text(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _saved(directory: Path) -> list[Path]:
    try:
        found = [path for path in directory.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name) if path.name.isdigit() else -1)


def _megabytes(path: Path) -> float:
    return round(sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / 1e6, 2)
