"""Compares the effect of four faults on a training run, here and in other frameworks.

Each cell is a separate run with two actors; the fault hits one of them. Findings are saved in
results/chaos/peers.json at once, and the next call continues after the last one.

    python -m benchmarks.peers.faults [--only sb3/hang ...] [--again] [--table]
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import PAGE, RESULTS, note, provenance, publish, write_json
from benchmarks.peers.apart import end_in_order, python_of, started
from benchmarks.peers.faults_verdict import ACTORS, Observed, Strength, judge
from benchmarks.peers.faulty import Run

MARKS = "<!-- faults elsewhere: written by peers/faults.py -->", "<!-- end of faults elsewhere -->"

PATIENCE_S = 100.0

_START_S = 90.0
_CALM_S = 3.0
_SETTLE_S = {"nan": 20.0}
_STOP_S = 20.0
_LOOK_S = 0.02
_TURNS_FIRST = 5

_TITLES = {
    "kill": "`kill -9`",
    "raise": "the environment raises",
    "hang": "the environment hangs",
    "nan": "one step of NaN",
}
_HEAD = ["what happened", "after", "longest pause", "experience", "exit code", "message"]


class DidNotStart(Exception):
    """A run ended before the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One framework, and how it is run here."""

    label: str
    script: str
    venv: str = ""
    """Name of its virtual environment below .peers; empty for asyncrl's."""

    arguments: tuple[str, ...] = ()
    careful: tuple[str, ...] = ()
    """Faults for which it has specific settings."""

    means: str = ""
    """Description of these settings."""

    hang_patience_s: float = PATIENCE_S
    """How long to wait for an end of a hang under its defaults."""

    @property
    def framework(self) -> str:
        """Return its name without the algorithm."""
        return self.label.partition(",")[0]


def _rllib(algorithm: str) -> Side:
    return Side(
        label=f"RLlib, {algorithm.upper()}",
        script="faults_rllib",
        venv="rllib",
        arguments=("--algorithm", algorithm),
        careful=("raise", "hang", "nan"),
        means="sample_timeout_s, env_runner_health_probe_timeout_s and "
        "env_runner_restore_timeout_s 10 s, delay_between_env_runner_restarts_s 1 s, "
        "restart_failed_sub_environments",
        hang_patience_s=200.0,  # its own deadlines are 60 s and 30 s, and a restart waits for 60 s
    )


SIDES: dict[str, Side] = {
    "asyncrl": Side(
        label="asyncrl, DQN",
        script="faults_asyncrl",
        careful=("raise", "hang", "nan"),
        means='supervision.step_timeout_s 10 s, restart.on_exception "restart_env"',
        hang_patience_s=320.0,  # its own deadline is 300 s
    ),
    "rllib-ppo": _rllib("ppo"),
    "rllib-impala": _rllib("impala"),
    "torchrl": Side(
        label="TorchRL, DQN, MultiAsyncCollector",
        script="faults_torchrl",
        venv="torchrl",
        careful=("hang", "nan"),
        means="MAX_IDLE_COUNT 10 s, FiniteTensorDictCheck",
    ),
    "sb3": Side(
        label="Stable-Baselines3, PPO, SubprocVecEnv",
        script="faults_sb3",
        venv="sb3",
        careful=("nan",),
        means="VecCheckNan(raise_exception=True)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One framework under one fault."""

    side: str
    fault: str
    careful: bool = False

    @property
    def name(self) -> str:
        """Return its name on the command line and in the results."""
        return f"{self.side}/{self.fault}" + ("/careful" if self.careful else "")

    @property
    def patience_s(self) -> float:
        """Return how long to wait for all actors, in seconds."""
        waits = self.fault == "hang" and not self.careful
        return SIDES[self.side].hang_patience_s if waits else PATIENCE_S

    def command(self, directory: Path) -> list[str]:
        """Return the command that runs it."""
        side = SIDES[self.side]
        module = f"{__spec__.parent}.{side.script}"
        command = [
            str(python_of(side.venv)),
            "-m",
            module,
            str(directory),
            self.fault,
            *side.arguments,
        ]
        return [*command, "--careful"] if self.careful else command


def cells() -> list[Cell]:
    """Return all of them, in the order of the table."""
    return [
        Cell(side=name, fault=fault, careful=careful)
        for fault in _TITLES
        for name, side in SIDES.items()
        for careful in (False, True)
        if not careful or fault in side.careful
    ]


def run_cell(cell: Cell) -> tuple[dict[str, Any], str]:
    """Run it; return the finding and the framework's version."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as made:
        run, said = Run(directory=Path(made)), Path(made) / "said"
        run.open()
        with (
            said.open("wb") as out,
            started(cell.command(run.directory), run.directory, out, out) as process,
        ):
            seen = _watch(cell, run, process, said)
        return judge(seen), run.notes("version")[0]["version"]


def _watch(cell: Cell, run: Run, process: subprocess.Popen[bytes], said: Path) -> Observed:
    _await_calm(run, process, said)
    printed = said.stat().st_size
    run.ask("flag")
    fault_at = _await_fault(run, process)
    strength = Strength(fault_at)
    working = _await_verdict(cell, run, process, strength)
    until, ended = time.monotonic(), process.poll() is not None
    run.ask("stop")
    exit_code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        exit_code = process.wait(_STOP_S)
    return Observed(
        fault_at=fault_at,
        until=until,
        ended=ended,
        exit_code=exit_code,
        full_since=strength.full_since,
        working=working,
        made=sum(beat.steps for beat in run.beats().values()),
        notes=run.notes(),
        said=said.read_bytes()[printed:].decode(errors="replace"),
    )


def _await_calm(run: Run, process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until all actors work and the learner learns, and for a while more."""
    began, strength = time.monotonic(), Strength(0.0)
    while True:
        now = time.monotonic()
        strength.look(run.beats(), now)
        calm = strength.full_since is not None and now > strength.full_since + _CALM_S
        if calm and len(run.notes("progress")) >= _TURNS_FIRST:
            return
        if process.poll() is not None or now > began + _START_S:
            raise DidNotStart(said.read_text(encoding="utf-8", errors="replace")[-2000:])
        time.sleep(0.2)


def _await_fault(run: Run, process: subprocess.Popen[bytes]) -> float:
    deadline = time.monotonic() + _START_S
    while not (faults := run.notes("fault")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise DidNotStart("no environment triggered the fault")
        time.sleep(_LOOK_S)
    return float(faults[0]["at"])


def _await_verdict(
    cell: Cell, run: Run, process: subprocess.Popen[bytes], strength: Strength
) -> int:
    """Watch until the outcome of the run is clear; return how many actors work then."""
    deadline = time.monotonic() + cell.patience_s
    settle_s = _SETTLE_S.get(cell.fault, 10.0)
    working = 0
    while process.poll() is None and (now := time.monotonic()) < deadline:
        working = strength.look(run.beats(), now)
        full_since = strength.full_since
        if full_since is not None and now > full_since + settle_s:
            learned = run.notes("progress")
            if learned and learned[-1]["at"] > full_since:
                break
        time.sleep(_LOOK_S)
    return working


def render(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one table per fault, from the saved findings."""
    known = [cell for cell in cells() if cell.name in found]
    lines: list[str] = []
    for fault in dict.fromkeys(cell.fault for cell in known):
        lines += ["", _line([f"**{_TITLES[fault]}**", *_HEAD]), _line(["---"] * (len(_HEAD) + 1))]
        lines += [_row(cell, found.get(cell.name)) for cell in cells() if cell.fault == fault]
    return "\n".join([*lines, "", *_origin(known, found), ""])


def _row(cell: Cell, kept: Mapping[str, Any] | None) -> str:
    label = SIDES[cell.side].label + (" (careful)" if cell.careful else "")
    if kept is None:
        return _line([label, "not measured", *[""] * (len(_HEAD) - 1)])
    finding = kept["finding"]
    return _line(
        [
            label,
            _outcome(finding),
            f"{finding['after_s']:.1f} s",
            "" if finding["outcome"] == "ended" else f"{finding['pause_s']:.1f} s",
            _experience(finding),
            "killed by the benchmark"
            if finding["exit_code"] is None
            else str(finding["exit_code"]),
            _error_text(cell, finding),
        ]
    )


def _outcome(finding: Mapping[str, Any]) -> str:
    match finding["outcome"]:
        case "recovered":
            return "**recovered**"
        case "ended":
            return "run ended"
        case "hung":
            return "hung"
        case "short":
            halting = ", with long pauses" if finding["pause_s"] > finding["after_s"] / 4 else ""
            return f"continued with {ACTORS - 1} of {ACTORS} actors{halting}"
        case _:
            how = "" if finding["message"] else " without a message"
            return f"continued{how}, and learned from it"


def _experience(finding: Mapping[str, Any]) -> str:
    if finding["bad_rows"] or finding["bad_params"]:
        is_nan = ", **the model is NaN**" if finding["bad_params"] else ""
        return f"{finding['bad_rows']} bad rows learned from{is_nan}"
    steps = "1 step" if finding["lost"] == 1 else f"{finding['lost']:,} steps"
    return (
        f"{steps} never learned from"
        if finding["outcome"] in {"ended", "hung"}
        else f"{steps} lost"
    )


def _error_text(cell: Cell, finding: Mapping[str, Any]) -> str:
    if not finding["message"]:
        return "nothing"
    text = f"`{finding['message'].replace('|', '/').replace('`', chr(39))}`"
    hidden = (cell.fault, finding["outcome"], finding["cause"]) == ("raise", "ended", "screen")
    return f"{text}; the cause is on the screen" if hidden else text


def _origin(known: list[Cell], found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    kept = [found[cell.name] for cell in known]
    if not kept:
        return
    sides = {SIDES[cell.side].framework: SIDES[cell.side] for cell in known if cell.careful}
    for framework, side in sides.items():
        yield f"{framework}, careful: {side.means}.  "
    versions = {SIDES[cell.side].framework: found[cell.name]["version"] for cell in known}
    shown = ", ".join(f"{framework} {version}" for framework, version in versions.items())
    dates = ", ".join(sorted({one["date"] for one in kept}))
    yield f"Measured: {dates}, one run each, with {shown}.  "
    machines = {f"{one['machine']['processor']}, {one['machine']['platform']}" for one in kept}
    loads = [one["load_before"] for one in kept]
    busy = f"others used it as well, load {min(loads):.0f} to {max(loads):.0f}"
    yield f"On: {'; '.join(sorted(machines))}; {busy}."


def _line(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"


def chosen(only: list[str]) -> list[Cell]:
    """Return the cells that match a pattern, or whose prefix does; without patterns, all."""
    patterns = [pattern for name in only for pattern in (name, f"{name}/*")] or ["*"]
    fits = [c for c in cells() if any(fnmatch.fnmatch(c.name, pattern) for pattern in patterns)]
    if not fits:
        raise SystemExit(f"no cell is called {only}; there are {[cell.name for cell in cells()]}")
    return fits


def load(path: Path) -> dict[str, Any]:
    """Return saved findings by name of the cell; empty without a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def measure(cell: Cell, path: Path) -> None:
    """Run one cell and save the finding; print the reason if it did not start."""
    origin = provenance()
    try:
        finding, version = run_cell(cell)
    except DidNotStart as error:
        note(f"{cell.name} did not start: {error}")
        return
    note(f"{cell.name}: {finding['outcome']} after {finding['after_s']:g} s: {finding['message']}")
    kept = {"finding": finding, "version": version, **origin, "patience_s": cell.patience_s}
    write_json(path, dict(sorted({**load(path), cell.name: kept}.items())))


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CELL", help="as sb3/hang, or sb3")
    parser.add_argument("--again", action="store_true", help="measure these again")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    parser.add_argument("--results", type=Path, default=RESULTS / "chaos")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    end_in_order()
    path = given.results / "peers.json"
    for cell in [] if given.table else chosen(given.only):
        if not python_of(SIDES[cell.side].venv).exists():
            note(f"{cell.name}: benchmarks/peers/make_venv.sh {SIDES[cell.side].venv} is missing")
        elif given.again or cell.name not in load(path):
            measure(cell, path)
    publish(given.page, render(load(path)), MARKS)


if __name__ == "__main__":
    main()
