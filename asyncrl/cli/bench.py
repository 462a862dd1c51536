"""`asyncrl bench`: throughput of each stage against its own limit, measured in the same call."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from asyncrl.cli.output import complain, show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.declared import Count, NotNegative
from asyncrl.core.errors import ConfigError
from asyncrl.metrics.machine import machine
from asyncrl.tools.bench.measure import Rounds, Stage
from asyncrl.tools.bench.report import compare, render
from asyncrl.tools.bench.result import Result, load_results, save_results
from asyncrl.tools.bench.workload import StageName, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments(Workload):
    """Measure stages, each against its own limit, in turns.

    `asyncrl bench tune` finds the fastest settings.
    """

    stage: Annotated[Literal[StageName, "all"], POSITIONAL]
    """The stage to measure: `env`, `sample`, `learner`, `train`, or `all`."""

    repeats: Count = 3
    """Rounds. Each one measures value and limit; the median counts."""

    quick: bool = False
    """Smoke test of a few seconds per stage. Other flags still apply."""

    json: bool = False
    """Print one JSON object per line, as soon as it is measured, instead of the table."""

    save: Path | None = None
    """Write all results to this file as JSON, also after Ctrl-C."""

    compare: Path | None = None
    """Compare with the results in this file; exit with code 1 if a ratio got worse."""

    tolerance: NotNegative = 0.1
    """How much worse than the baseline a ratio may be, as a share of the baseline."""

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        if self.save is not None:
            _check_place(self.save)


_QUICK = {"repeats": 1, "seconds": 0.5, "warm_up_seconds": 0.2, "capacity": 50_000}


def parse(argv: list[str]) -> BenchArguments:
    """Parse the command line."""
    quick = _QUICK if "--quick" in argv else {}
    return parsed(BenchArguments, "asyncrl bench", argv, quick)


def _check_place(path: Path) -> None:
    directory = path.absolute().parent
    if not directory.is_dir():
        raise ConfigError(f"--save {path}: the directory {path.parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"--save {path} is a directory; name a file")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"--save {path}: {path.parent} is not writable")


def run(bench: BenchArguments) -> int:
    """Measure, and return the exit code."""
    from asyncrl.tools.bench.stages import make_stages

    baseline = load_results(bench.compare) if bench.compare is not None else None
    if bench.save is not None:  # environments may change the working directory
        bench = replace(bench, save=bench.save.absolute())
    results: list[Result] = []
    try:
        for stage in make_stages(bench.stage, bench):
            _measure(stage, bench, results)
    except KeyboardInterrupt:
        if results:
            complain("asyncrl: interrupted; these are the results of complete rounds")
        raise
    finally:
        _report("")
        if results:
            _deliver(results, bench)
    return 0 if baseline is None else _judge(bench, baseline, results)


def _measure(stage: Stage, bench: BenchArguments, results: list[Result]) -> None:
    """Add the results of one stage; after Ctrl-C, those of its complete rounds."""
    with closing(stage):
        name = stage.quantities[0].stage
        rounds = Rounds(stage, seconds=bench.seconds, machine=machine())
        try:
            rounds.run(
                bench.repeats,
                lambda number, what: _report(f"{name}: round {number} of {bench.repeats}, {what}"),
            )
        finally:
            results += rounds.results()
            _print_lines(rounds.results() if bench.json else [])


def _print_lines(results: list[Result]) -> None:
    for result in results:
        show(json.dumps(dataclasses.asdict(result)))


def _deliver(results: list[Result], bench: BenchArguments) -> None:
    """Print and save the results; if one of the two fails, the other is still done."""
    try:
        if not bench.json:
            show(render(results))
    finally:
        if bench.save is not None:
            save_results(results, bench.save)


def _judge(bench: BenchArguments, baseline: list[Result], results: list[Result]) -> int:
    comparison = compare(results, baseline, tolerance=bench.tolerance)
    lines = ["", f"compared with {bench.compare}:", *comparison.lines]
    if bench.json:
        complain("\n".join(lines))
    else:
        show("\n".join(lines))
    return comparison.exit_code


def _report(text: str) -> None:
    """Show progress in one line that the next call replaces; only on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
