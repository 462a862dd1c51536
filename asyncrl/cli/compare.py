"""`asyncrl compare`: runs side by side, and the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.table import Table

from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.cli.run_directory import runs_in
from asyncrl.cli.runs import print_table
from asyncrl.core.errors import ConfigError
from asyncrl.recorders.run_state import count, duration, measure
from asyncrl.tools.report.run_files import RunFiles, differences

_LEAST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArguments:
    """Compare runs."""

    run_dirs: Annotated[tuple[Path, ...], POSITIONAL]
    """Directories of two or more runs."""

    json: bool = False
    """Print one line of JSON."""

    def __post_init__(self) -> None:
        if len(self.run_dirs) < _LEAST:
            raise ConfigError(
                f"asyncrl compare takes at least {_LEAST} run directories, got {len(self.run_dirs)}"
            )


_NUMBERS: dict[str, tuple[str, Callable[[float], str]]] = {
    "best score": ("best_score", measure),
    "at opt step": ("best_opt_steps", count),
    "last score": ("last_score", measure),
    "time to the bar": ("seconds_to_stop_bar", duration),
    "time": ("wall_s", duration),
    "env steps": ("env_steps", count),
    "opt steps": ("opt_steps", count),
    "env steps/s": ("env_steps_per_s", count),
    "opt steps/s": ("opt_steps_per_s", count),
    "samples per insert": ("samples_per_insert", measure),
}
"""The compared quantities: name in `summary.json`, and format."""


parse = partial(parsed, CompareArguments, "asyncrl compare")


def run(arguments: CompareArguments) -> int:
    """Compare the runs, and return the exit code."""
    runs = runs_in(arguments.run_dirs)
    settings = differences([run.config for run in runs])
    if arguments.json:
        numbers = {name: [_number(run, name) for run in runs] for name, _ in _NUMBERS.values()}
        names = [str(run.path) for run in runs]
        show(json.dumps({"runs": names, "numbers": numbers, "settings": settings}))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for run_ in runs:
        table.add_column(str(run_.path), justify="right", overflow="fold")
    table.add_row("state", *(run.state for run in runs))
    table.add_row("agent", *(run.agent for run in runs))
    for label, (name, form) in _NUMBERS.items():
        found = [_number(run, name) for run in runs]
        if any(value is not None for value in found):
            table.add_row(label, *("-" if value is None else form(value) for value in found))
    table.add_section()
    for setting, values in settings.items():
        table.add_row(setting, *("-" if value is None else str(value) for value in values))
    print_table(table)
    return 0


def _number(run: RunFiles, name: str) -> float | None:
    if name == "best_score":
        return run.score
    found = (run.summary or run.last).get(name)
    return None if found is None else float(found)
