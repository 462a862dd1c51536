"""What the benchmarks share: measuring in turns, comparing neighbours, keeping results.

Numbers of one machine at one moment say little; what counts is the ratio of two measurements made
next to each other. Knows nothing about what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.metrics.machine import machine

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
ASYNCRL = (sys.executable, "-c", "import sys; from asyncrl.cli.main import main; sys.exit(main())")
"""The command line as its users start it; the arguments follow."""

FIRST_SEED = 100
"""Seeds of the published training runs. Presets were tuned on seeds 0 to 9."""

Rounds = dict[str, list[float]]
"""Name of what was measured -> one number for each round."""

_QUIET_LOAD = 0.5
_PLACES = {"results", "venv", "peers"}
"""Command-line arguments that a result does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two quantities measured in turns. A number is None where a round produced none."""

    what: str
    unit: str
    ours: float | None
    other: float | None
    ratio: float | None
    """Median of ours / other of each round, or, where rounds are not paired, of the medians."""

    ratios: list[float | None]


def make_parser(
    description: str | None, *, repeats: int = 0, results: Path = RESULTS
) -> argparse.ArgumentParser:
    """Return a parser of the options of all benchmarks; 0 repeats omits that option."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    if repeats:
        parser.add_argument("--repeats", type=positive, default=repeats, help="of each measurement")
    parser.add_argument("--results", type=Path, default=results, help="directory of JSON files")
    return parser


def positive(text: str) -> int:
    """Read a count from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def in_turns(measures: Mapping[str, Callable[[], float]], repeats: int) -> Rounds:
    """Take one measurement of each kind, then the next of each, and so on."""
    rounds: Rounds = {name: [] for name in measures}
    for i in range(repeats):
        for name, measure in measures.items():
            value = measure()
            rounds[name].append(value)
            note(f"round {i + 1} of {repeats}: {name} {value:,.4g}")
    return rounds


def compare(
    rounds: Rounds, ours: str, other: str, *, what: str, unit: str, paired: bool = True
) -> Comparison:
    """Compare neighbouring measurements; infinity marks a round that never reached its goal.

    A round in which neither reached it has no ratio. Unpaired, the ratio is that of the medians:
    use it if rounds differ more by chance than by the machine's other load.
    """
    ratios = [a / b if b else math.inf for a, b in zip(rounds[ours], rounds[other], strict=True)]
    medians = statistics.median(rounds[ours]), statistics.median(rounds[other])
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    ratio = statistics.median(known) if known else math.nan
    if not paired:
        ratio = medians[0] / medians[1]
    return Comparison(
        what=what,
        unit=unit,
        ours=_finite(medians[0]),
        other=_finite(medians[1]),
        ratio=_finite(ratio),
        ratios=[_finite(ratio) for ratio in ratios],
    )


def fingerprint(*others: str) -> str:
    """Return a hash of the source of asyncrl, and of other directories, as it lies on disk."""
    digest = hashlib.sha256()
    for directory in ("asyncrl", *others):
        for path in sorted((ROOT / directory).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def provenance() -> dict[str, Any]:
    """Return the provenance of a result: date, commit, load, machine."""
    load = os.getloadavg()[0]
    if load > _QUIET_LOAD:
        note(f"the load is {load:.2f}: something else is running, so numbers will be too low")
    origin = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "load_before": load,
        "machine": machine(),
    }
    if not is_clean(origin):
        note(
            "the code has changes that are in no commit: the tables will not show what is measured"
        )
    return origin


def keep(
    args: argparse.Namespace,
    name: str,
    question: str | None,
    comparisons: Iterable[Comparison],
    *,
    origin: Mapping[str, object],
    details: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> None:
    """Write one result to `NAME.json` in the directory of results, and print it as one line.

    Args:
        args: The command line; all but the results' directory are settings of the result.
        name: Name of the result; an older one of this name moves to the folder `replaced`.
        question: What was asked; the first line of a docstring.
        comparisons: The measured comparisons.
        origin: What `provenance` returned before the first measurement.
        details: All raw numbers.
        quiet: Write without printing, for an incomplete result.
    """
    settings = {key: value for key, value in vars(args).items() if key not in _PLACES}
    result = {
        "name": name,
        "question": (question or "").partition("\n")[0],
        **origin,
        "settings": settings,
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "details": dict(details or {}),
    }
    path = args.results / f"{name}.json"
    if not _is_same_measurement(path, origin):
        keep_replaced(path)
    write_json(path, result)
    if not quiet:
        print(json.dumps(result), flush=True)


def keep_replaced(path: Path) -> None:
    """Copy a file of results to the folder `replaced` beside it, named by its date and commit."""
    if not path.exists():
        return
    older = json.loads(path.read_text(encoding="utf-8"))
    taken = older if "date" in older else (older.get("measurements") or [{}])[-1]
    suffix = f"{taken.get('date', 'undated')}_{taken.get('commit', 'unknown')}"
    to = path.parent / "replaced" / f"{path.stem}_{suffix}.json"
    to.parent.mkdir(exist_ok=True)
    shutil.copy(path, to)


def _is_same_measurement(path: Path, origin: Mapping[str, object]) -> bool:
    """Whether a file holds an earlier part of this measurement."""
    if not path.exists():
        return False
    older = json.loads(path.read_text(encoding="utf-8"))
    return all(older.get(name) == origin[name] for name in origin)


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Write a result atomically; create its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def insert(page: str, table: str, marks: tuple[str, str]) -> str:
    """Return the page with the table in the place of the one between the marks."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"the page needs the two lines {marks[0]!r} and {marks[1]!r}, in order")
    return f"{before}{begin}\n{table}\n{end}{after}"


def publish(page: Path, table: str, marks: tuple[str, str]) -> None:
    """Write a table into a page, between its marks."""
    page.write_text(insert(page.read_text(encoding="utf-8"), table, marks), encoding="utf-8")


def is_clean(origin: Mapping[str, Any]) -> bool:
    """Whether a result was measured at a commit, without uncommitted changes."""
    commit = origin.get("commit") or "-dirty"
    return not commit.endswith("-dirty")


def note(text: str) -> None:
    """Print progress to stderr; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """Return the commit; with "-dirty" if anything but results differs from it."""
    git = shutil.which("git")
    if git is None:
        return ""
    base = [git, "-C", str(ROOT)]
    code = [".", ":!benchmarks/results", ":!benchmarks/README.md"]
    with contextlib.suppress(subprocess.CalledProcessError):
        commit = subprocess.check_output(  # noqa: S603  # git itself
            [*base, "rev-parse", "--short", "HEAD"], text=True, stderr=subprocess.DEVNULL
        ).strip()
        differs = subprocess.run(  # noqa: S603
            [*base, "diff", "--quiet", "HEAD", "--", *code], check=False
        ).returncode
        return commit + "-dirty" * bool(differs)
    return ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
