"""Compares the speed of asyncrl and of all installed peers, stage by stage, in turns.

Each measurement is a separate process, in the side's own virtual environment. All sides of a stage
are measured one after another, then the next stage; then everything again, with other seeds. Every
number is saved in results/peers.json at once, and the next call continues where this one was
stopped. At the end the table in README.md is rewritten.

A round of a stage counts as a whole: it is repeated if the code of any of its sides has changed.

    python -m benchmarks.peers.compare [--stages STAGE ...] [--peers PEER ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.metrics.machine import machine
from benchmarks.common import (
    FIRST_SEED,
    PAGE,
    RESULTS,
    ROOT,
    commit,
    fingerprint,
    keep_replaced,
    note,
    positive,
    publish,
    write_json,
)
from benchmarks.peers.apart import end_in_order, python_of, run_apart
from benchmarks.peers.results import (
    MARKS,
    OURS,
    ROUNDS,
    Measurement,
    Quantity,
    load_measurements,
    quantities,
    render,
    save_measurements,
)

SETTINGS_FILE = "peers_settings.json"
"""Stage -> side -> environment -> the settings that are fastest here, as `--sweep` finds them."""

SWEPT = ("sampling", "env")

_SB3: Sequence[Mapping[str, Any]] = [
    *({"processes": False, "envs": n} for n in (16, 64, 128)),
    {"processes": True, "envs": 8},
]
_PLAIN: Sequence[Mapping[str, Any]] = [
    *({"kind": "sync", "envs": n} for n in (16, 64, 128)),
    {"kind": "async", "envs": 8},
    *({"kind": "ale", "envs": n} for n in (8, 16)),
]
GRIDS: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "sb3": {"sampling": _SB3, "env": _SB3},
    "cleanrl_style": {"sampling": _PLAIN, "env": _PLAIN},
    "torchrl": {
        "env": [
            *({"kind": "sync", "envs": n} for n in (16, 64, 128)),
            {"kind": "ale", "envs": 16},
            {"kind": "serial", "envs": 16},
            {"kind": "parallel", "envs": 4},
        ]
    },
    OURS: {
        "sampling": [{"envs_per_actor": n} for n in (16, 64, 256)],
        "env": [{"envs": n} for n in (16, 64, 256)],
    },
}
"""Side -> stage -> settings that `--sweep` tries. Other sides keep their scripts' defaults."""

_START_S = 150.0
"""Seconds that a process may take besides measuring."""


@dataclass(frozen=True, slots=True)
class Side:
    """A framework in the comparison."""

    script: str
    """Name of its module in this folder."""

    stages: tuple[str, ...]
    venv: str = ""
    """Name of its virtual environment below .peers; empty for asyncrl's."""

    files: str = ""
    """Glob pattern of its scripts; by default, all whose names start with the module's."""

    def sources(self) -> list[Path]:
        """Return its scripts."""
        return sorted((ROOT / "benchmarks" / "peers").glob(self.files or f"{self.script}*.py"))


_UPDATES = ("updates-sac", "updates-dqn")
_LEARNS = ("sampling", "env", *_UPDATES)
_ALL = (*_LEARNS, "per")

SIDES: Mapping[str, Side] = {
    OURS: Side("ours", _ALL),
    "sb3": Side("sb3", _LEARNS, "sb3"),
    "torchrl": Side("torchrl", _ALL, "torchrl"),
    "cleanrl_style": Side("cleanrl_style", _LEARNS, files="cleanrl_*.py"),
    "envpool": Side("envpool_env", ("sampling", "env"), "envpool"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, how often and for how long."""

    sides: tuple[str, ...]
    stages: tuple[str, ...]
    rounds: int
    seconds: float
    swept: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=dict)
    """Stage -> side -> environment -> settings in place of the script's own."""

    def settings(self, side: str, quantity: Quantity) -> str:
        """Return the request for the script, as JSON."""
        return json.dumps(self.swept.get(quantity.stage, {}).get(side, {}).get(quantity.env, {}))

    def steps(self) -> Iterator[tuple[int, Quantity, str]]:
        """Return round, quantity and side of each measurement, in order."""
        for number in range(self.rounds):
            for quantity in quantities():
                if quantity.stage not in self.stages:
                    continue
                for side in self.sides:
                    if quantity.stage in SIDES[side].stages:
                        yield number, quantity, side

    def identity(self, side: str, quantity: Quantity) -> str:
        """Return a hash that changes when a measurement must be repeated."""
        key = f"{self.seconds} {self.settings(side, quantity)}"
        digest = hashlib.sha256(key.encode())
        for path in [ROOT / "benchmarks" / "peers" / "interface.py", *SIDES[side].sources()]:
            digest.update(path.read_bytes())
        if side == OURS:
            digest.update(fingerprint().encode())
        return digest.hexdigest()[:16]


def still_valid(
    measurements: Iterable[Measurement], identities: Mapping[tuple[str, Quantity], str]
) -> list[Measurement]:
    """Return the measurements of rounds in which no side has changed since."""
    taken = list(measurements)
    stale = {
        (m.round, m.quantity)
        for m in taken
        if identities.get((m.side, m.quantity), m.identity) != m.identity
    }
    return [m for m in taken if (m.round, m.quantity) not in stale]


def settled(measurements: Iterable[Measurement], quantity: Quantity, side: str) -> bool:
    """Whether another round adds nothing, since the side fails."""
    return any(m.failed for m in measurements if (m.quantity, m.side) == (quantity, side))


def ask(
    side: str, quantity: Quantity, seconds: float, *, seed: int, settings: str
) -> tuple[dict[str, Any], str]:
    """Run the side's script once; return what it printed, or why it printed nothing."""
    script = f"benchmarks.peers.{SIDES[side].script}"
    command = [str(python_of(SIDES[side].venv)), "-m", script, quantity.stage]
    command += ["--env", quantity.env, "--seconds", f"{seconds:g}", "--seed", str(seed)]
    return run_apart([*command, "--settings", settings], seconds + _START_S)


def sweep(plan: Plan, path: Path) -> None:
    """Measure the variants of each side once, and save which is the fastest."""
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for quantity in (q for q in quantities() if q.stage in plan.stages and q.stage in SWEPT):
        for side in (side for side in plan.sides if quantity.stage in GRIDS.get(side, {})):
            found = []
            for settings in GRIDS[side][quantity.stage]:
                asked = json.dumps(settings)
                printed, _ = ask(side, quantity, plan.seconds, seed=0, settings=asked)
                if value := printed.get("value"):
                    found.append((value, settings))
                note(f"{quantity.stage}, {quantity.env}: {side} {asked}: {value}")
            if found:
                _, best = max(found, key=lambda one: one[0])
                of_side = known.setdefault(quantity.stage, {}).setdefault(side, {})
                of_side[quantity.env] = best
                write_json(path, known)


def measure(side: str, quantity: Quantity, number: int, plan: Plan) -> Measurement:
    """Run the side's script once."""
    load, began = os.getloadavg()[0], time.monotonic()
    settings = plan.settings(side, quantity)
    printed, why = ask(side, quantity, plan.seconds, seed=FIRST_SEED + number, settings=settings)
    wall_s = time.monotonic() - began
    # A script that reports no value has given up.
    value = printed.get("value")
    return Measurement(
        side=side,
        stage=quantity.stage,
        env=quantity.env,
        round=number,
        value=value,
        failed=bool(why) or value is None,
        version=printed.get("version", ""),
        note=why or printed.get("note", ""),
        date=time.strftime("%Y-%m-%d"),
        commit=commit(),
        load_before=load,
        identity=plan.identity(side, quantity),
        wall_s=wall_s,
        settings=printed.get("settings", {}),
        details=printed.get("details", {}),
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stages", nargs="+", choices=_ALL, default=_ALL)
    parser.add_argument("--peers", nargs="*", choices=[s for s in SIDES if s != OURS])
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument(
        "--sweep", action="store_true", help="find the fastest settings, and measure nothing"
    )
    parser.add_argument("--budget", type=float, default=0.0, help="seconds; then begin no other")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args()


def make_plan(args: argparse.Namespace) -> Plan:
    """Return the plan for the sides whose virtual environments are there."""
    wanted = SIDES if args.peers is None else (OURS, *args.peers)
    there = tuple(side for side in SIDES if side in wanted and python_of(SIDES[side].venv).exists())
    for side in wanted:
        if side not in there:
            note(f"without {side}: benchmarks/peers/make_venv.sh {SIDES[side].venv} installs it")
    path = args.results / SETTINGS_FILE
    return Plan(
        swept=json.loads(path.read_text(encoding="utf-8")) if path.exists() else {},
        sides=there,
        stages=tuple(args.stages),
        rounds=args.rounds,
        seconds=args.seconds,
    )


def kept_from_before(path: Path, plan: Plan, here: Mapping[str, Any]) -> list[Measurement]:
    """Return earlier measurements that count; if not all do, the file is kept as replaced."""
    where, before = load_measurements(path)
    if where and where != here:
        note(f"{path} was measured on another machine or with other packages; starting over")
        keep_replaced(path)
        return []
    now = {(side, q): plan.identity(side, q) for side in plan.sides for q in quantities()}
    kept = still_valid(before, now)
    note(f"{path}: going on with {len(kept)} of {len(before)} measurements")
    if len(kept) < len(before):
        keep_replaced(path)
    return kept


def measure_missing(plan: Plan, path: Path, taken: list[Measurement], budget_s: float) -> None:
    """Add what is not there yet, and keep each measurement as soon as it is taken."""
    began = time.monotonic()
    done = {(m.round, m.quantity, m.side) for m in taken}
    for number, quantity, side in plan.steps():
        if (number, quantity, side) in done or settled(taken, quantity, side):
            continue
        if budget_s and time.monotonic() - began > budget_s:
            note("the budget is spent; the next call continues")
            return
        found = measure(side, quantity, number, plan)
        what = f"round {number + 1}, {quantity.stage}, {quantity.env}: {side}"
        note(f"{what} {found.value} {found.note} ({found.wall_s:.0f} s)")
        taken.append(found)
        save_measurements(path, machine(), taken)


def main() -> None:
    """Measure what is missing and write the table, or find the fastest settings."""
    args = arguments()
    end_in_order()
    plan, path = make_plan(args), args.results / "peers.json"
    if args.sweep:
        sweep(plan, args.results / SETTINGS_FILE)
        return
    taken = [] if args.fresh else kept_from_before(path, plan, machine())
    measure_missing(plan, path, taken, args.budget)
    publish(args.page, render(machine(), taken), MARKS)
    note(f"the table is in {args.page}")


if __name__ == "__main__":
    main()
