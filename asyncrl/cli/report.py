"""`asyncrl report`: a page with the curves and tables of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from asyncrl.cli.output import complain, printing_log, show
from asyncrl.cli.parser import POSITIONAL, Alias, parsed
from asyncrl.cli.run_directory import runs_in
from asyncrl.core.declared import Port
from asyncrl.core.errors import ConfigError
from asyncrl.tools.report.live import LiveReport, check_active
from asyncrl.tools.report.one_run import report_of_run
from asyncrl.tools.report.run_files import RunFiles
from asyncrl.tools.report.several_runs import report_of_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArguments:
    """Write a page with curves and tables, which opens in any browser without a network."""

    run_dirs: Annotated[tuple[Path, ...], POSITIONAL]
    """Directory of a run, or of several to compare."""

    output: Annotated[Path | None, Alias("-o")] = None
    """File to write; report.html in the run directory by default, and in the working directory for
    several runs. An existing file is replaced."""

    live: bool = False
    """Write no file: serve the page of an active run to browsers on this machine, and keep it up to
    date until the run ends."""

    port: Port = 0
    """Port of `--live`. 0 takes a free one."""

    def __post_init__(self) -> None:
        if self.live and (self.output is not None or len(self.run_dirs) > 1):
            raise ConfigError(
                "--live shows one run and writes no file; omit --output and other runs"
            )


parse = partial(parsed, ReportArguments, "asyncrl report")


def run(arguments: ReportArguments) -> int:
    """Write the page, print its path, and return the exit code."""
    runs = runs_in(arguments.run_dirs)
    if arguments.live:
        return _show_live(runs[0], arguments.port)
    output = arguments.output or (runs[0].path if len(runs) == 1 else Path()) / "report.html"
    with printing_progress():
        html = report_of_run(runs[0]) if len(runs) == 1 else report_of_runs(runs)
    with written(output):
        output.write_text(html, encoding="utf-8", errors="backslashreplace")
    show(str(output))
    return 0


def printing_progress() -> AbstractContextManager[None]:
    """Print how far the records of runs are read, where that takes more than seconds."""
    return printing_log("asyncrl.tools.report.curves", by=complain)


def _show_live(run: RunFiles, port: int) -> int:
    check_active(run)
    with closing(LiveReport(run.path, port)) as live:
        live.serve()
        show(f"{live.url}\nshows the run until it ends; Ctrl-C ends it earlier")
        live.until_ended()
    show("the run has ended")
    return 0


@contextmanager
def written(output: Path) -> Iterator[None]:
    """Turn what the system says against writing a file into a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {output}: {error.strerror}; choose another file with --output"
        ) from error
