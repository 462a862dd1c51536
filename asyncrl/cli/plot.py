"""`asyncrl plot`: learning curves of runs as a PNG, SVG or PDF file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, Alias, parsed
from asyncrl.cli.report import printing_progress, written
from asyncrl.cli.run_directory import runs_in
from asyncrl.core.errors import ConfigError
from asyncrl.tools.report.plot import SUFFIXES, plot_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotArguments:
    """Draw the evaluations of runs.

    Runs that differ only in their seed form one curve: their interquartile mean, or the mean of
    fewer than four runs, with its bootstrapped 95 % interval.
    """

    run_dirs: Annotated[tuple[Path, ...], POSITIONAL]
    """Directories of one or more runs."""

    output: Annotated[Path, Alias("-o")] = Path("curves.png")
    """File to write; its ending is the format: .png, .svg or .pdf. An existing file is replaced."""

    axis: Literal["env_steps", "opt_steps", "wall_s"] | None = None
    """Horizontal axis. Default: `env_steps`, or `opt_steps` if all runs are offline."""


parse = partial(parsed, PlotArguments, "asyncrl plot")


def run(arguments: PlotArguments) -> int:
    """Draw the curves, print the path of the file, and return the exit code."""
    runs = runs_in(arguments.run_dirs)
    if arguments.output.suffix not in SUFFIXES:
        raise ConfigError(
            f"--output is {arguments.output}; its ending must be one of {', '.join(SUFFIXES)}"
        )
    with printing_progress(), written(arguments.output):
        plot_runs(runs, arguments.output, arguments.axis)
    show(str(arguments.output))
    return 0
