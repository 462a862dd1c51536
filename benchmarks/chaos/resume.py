"""Runs are killed with SIGKILL at random steps and go on from their checkpoints (target 13).

Synchronous runs of three agents are each killed at one random step and resumed; the final
checkpoint must have the same bits as that of a run nobody killed: parameters, optimiser, replay,
random generators and counters. One asynchronous run is killed again and again. Each of its lives
must begin with the counters, the ledger and the schedules of the newest whole checkpoint, and its
ledger must add up at the end.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.checkpoint.checkpoint import Checkpointer
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.resumed_runs import CASES, LAST, same, sync_run
from benchmarks.common import ROOT, note

_KILLS: dict[Size, int] = {"small": 2, "full": 20}
_LIFE_OPT_STEPS = (45, 120)
"""Of an asynchronous run until it is killed, if it has saved a checkpoint by then."""

_DEADLINE_S = 120.0
_Numbers = Mapping[str, Any]


def measure(size: Size, directory: Path) -> list[Finding]:
    """Kill and resume runs of both modes."""
    chance = random.SystemRandom() if size == "full" else random.Random(0)  # noqa: S311
    return [
        _synchronous(_KILLS[size], directory, chance),
        _asynchronous(_KILLS[size], directory / "asynchronous", chance),
    ]


def _synchronous(kills: int, directory: Path, chance: random.Random) -> Finding:
    cases = list(CASES)[:kills]
    for case in cases:
        _live(case, directory / case, math.inf)
    unbroken = {case: Checkpointer(directory / case).load(str(LAST)) for case in cases}
    differ: list[str] = []
    for i in range(kills):
        case, step = cases[i % len(cases)], chance.randrange(1, LAST)
        killed = directory / f"{case}-{i}"
        _live(case, killed, step)
        _live(case, killed, math.inf)
        if not same(Checkpointer(killed).load(str(LAST)), unbroken[case]):
            differ.append(f"{case} killed at step {step}")
        note(f"{case} killed at step {step}; {len(differ)} have other bits so far")
    return Finding(
        target=13,
        what="synchronous",
        measured=f"the same bits after {kills - len(differ)} of {kills} kills"
        + "".join(f", not after {each}" for each in differ),
        promised="all",
        passed=not differ,
        numbers={"kills": kills, "differ": len(differ)},
    )


def _live(case: str, directory: Path, dies_at: float) -> None:
    """Train in a process of its own until the end, or until a kill at a step."""
    resume = Checkpointer(directory).latest() is not None
    options = {"resume": resume, "dies_at": dies_at}
    # Forked, which is quick: this process has loaded torch and not used it.
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=sync_run, args=(case, directory), kwargs=options)
    process.start()
    process.join(_DEADLINE_S)
    expected = 0 if math.isinf(dies_at) else -signal.SIGKILL
    if process.exitcode != expected:
        process.kill()
        raise RuntimeError(f"{case}, to die at {dies_at}, ended with {process.exitcode}")


def _asynchronous(kills: int, directory: Path, chance: random.Random) -> Finding:
    broken: list[str] = []
    for life in range(kills + 1):
        saved = _saved(directory) if life else None
        told = _async_life(directory, chance.randint(*_LIFE_OPT_STEPS) if life < kills else 0)
        wrong = what_broke(saved, told)
        for each in wrong:
            note(f"life {life}: {each}")
        broken += wrong[:1]
        note(f"life {life} began at {told['begins']['opt_steps']} optimisation steps")
    went_on = kills - len(broken)
    return Finding(
        target=13,
        what="asynchronous",
        measured=f"counters, ledger and schedules went on after {went_on} of {kills} kills"
        + "".join(f"; {each}" for each in broken),
        promised="all",
        passed=not broken,
        numbers={"kills": kills, "opt_steps": told["ends"]["opt_steps"], "broken": len(broken)},
    )


def _saved(directory: Path) -> _Numbers:
    """Return what the newest whole checkpoint says."""
    checkpoint = Checkpointer(directory).load_latest()
    agent_env_steps = int(checkpoint.groups["agent"]["env_steps"])
    return {**checkpoint.meta, "agent_env_steps": agent_env_steps}


def _async_life(directory: Path, kill_after: int) -> dict[str, _Numbers]:
    """Live a life until it is killed, or, with 0, a last one; return what it told."""
    command = [sys.executable, "-m", "benchmarks.chaos.resumed_runs", str(directory)]
    done = subprocess.run(  # noqa: S603  # our own module
        [*command, str(kill_after)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode != (-signal.SIGKILL if kill_after else 0):
        raise RuntimeError(f"a life ended with {done.returncode}: {done.stderr[-1000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("what"): line for line in lines}


def what_broke(saved: _Numbers | None, told: Mapping[str, _Numbers]) -> list[str]:
    """Return what did not go on as it was saved.

    Args:
        saved: What the newest whole checkpoint says; None before there is one.
        told: What a life began with, what it was after a step and, if it was not killed, at its
            end.
    """
    begins = told["begins"]
    wrong = [
        f"{name} was saved as {value} and began as {begins[name]}"
        for name, value in _expected(saved).items()
        if begins[name] != value
    ]
    wrong += [
        f"{name} is {now[name]}, and should be {now[f'expected_{name}']}"
        for now in (begins, told["first_step"])
        for name in ("epsilon", "learning_rate")
        if name in now and not math.isclose(now[name], now[f"expected_{name}"], rel_tol=1e-6)
    ]
    if told["first_step"]["agent_env_steps"] < begins["agent_env_steps"]:
        wrong.append("environment steps fell with the first step")
    return wrong + (_wrong_at_the_end(begins, told["ends"]) if "ends" in told else [])


def _wrong_at_the_end(begins: _Numbers, ends: _Numbers) -> list[str]:
    ledger, wrong = ends["ledger"], []
    if ledger["in_flight"] or (
        ledger["produced"] != ledger["stored"] + ledger["dropped"] + ledger["lost"]
    ):
        wrong.append(f"the ledger does not add up: {ledger}")
    if ledger["stored"] < begins["ledger"]["stored"] or ends["opt_steps"] <= begins["opt_steps"]:
        wrong.append(f"the end counts less than the beginning: {ends}")
    return wrong


def _expected(saved: _Numbers | None) -> dict[str, object]:
    """Return what a life should begin with; what was in flight is lost."""
    if saved is None:
        return {"opt_steps": 0, "env_steps": 0, "agent_env_steps": 0}
    before = saved["run"]["ledger"]
    lost = before["produced"] - before["stored"] - before["dropped"]
    return {
        "opt_steps": saved["opt_steps"],
        "env_steps": saved["env_steps"],
        "agent_env_steps": saved["agent_env_steps"],
        "ledger": {**before, "lost": lost},
    }
