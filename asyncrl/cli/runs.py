"""`asyncrl runs`: lists runs and how they ended, as a table or as JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from asyncrl.cli.output import complain, results, show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.errors import ConfigError
from asyncrl.recorders.run_state import count, duration, measure
from asyncrl.tools.report.run_files import RunFiles, find_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsArguments:
    """List runs."""

    roots: Annotated[tuple[Path, ...], POSITIONAL] = (Path("runs"),)
    """Directories to search for runs, at any depth."""

    env: str | None = None
    """Only runs in environments whose name contains this text."""

    agent: str | None = None
    """Only runs of agents whose name contains this text."""

    state: Literal["running", "ended", "failed", "killed", "elsewhere"] | None = None
    """Only runs in this state. `elsewhere` was started on another host, and has not ended."""

    sort: Literal["start", "score", "time"] = "start"
    """Order: oldest first, best score first, or longest first."""

    json: bool = False
    """Print one line of JSON for each run."""


_WIDE = 240
"""Columns of a table that does not go to a terminal, so that `grep` and `less` see whole rows."""

_ORDER: dict[str, Callable[[RunFiles], float]] = {
    "start": lambda run: run.began_at,
    "score": lambda run: math.inf if run.score is None else -run.score,
    "time": lambda run: -run.number("wall_s"),
}


parse = partial(parsed, RunsArguments, "asyncrl runs")


def run(arguments: RunsArguments) -> int:
    """List the runs, and return the exit code."""
    wanted = sorted(
        (run for run in find_runs(list(arguments.roots)) if _matches(run, arguments)),
        key=_ORDER[arguments.sort],
    )
    if arguments.json:
        for found in wanted:
            show(json.dumps(_plain(found)))
    elif not wanted:
        show(f"no such run in {', '.join(map(str, arguments.roots))}")
    else:
        _print(wanted)
    return 0


def _matches(run: RunFiles, arguments: RunsArguments) -> bool:
    try:
        return (
            (arguments.env or "") in run.env
            and (arguments.agent or "") in run.agent
            and arguments.state in {None, run.state}
        )
    except ConfigError as error:
        complain(f"asyncrl: {run.path} is not listed: {error}")
        return False


def _plain(run: RunFiles) -> dict[str, Any]:
    counts = {name: run.number(name) for name in ("opt_steps", "env_steps", "wall_s")}
    return {
        "run": str(run.path),
        "agent": run.agent,
        "env": run.env,
        "seed": run.config.get("seed"),
        "state": run.state,
        "score": run.score,
        **counts,
        "began": run.began_at,
    }


def _print(runs: list[RunFiles]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "agent", "env", "state"):
        table.add_column(name, overflow="fold")
    for name in ("score", "opt steps", "env steps", "time", "started"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            str(run.path),
            run.agent,
            run.env,
            run.state,
            "-" if run.score is None else measure(run.score),
            count(run.number("opt_steps")),
            count(run.number("env_steps")),
            duration(run.number("wall_s")),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began_at)) if run.began_at else "-",
        )
    print_table(table)


def print_table(table: Table) -> None:
    """Write a table to the results."""
    width = None if results().isatty() else _WIDE
    Console(file=results(), width=width, markup=False, highlight=False).print(table)
