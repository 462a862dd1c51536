"""The four faults in several frameworks: one side is run, and what was kept makes the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults_in_process import CAUSE
from benchmarks.peers import faults
from benchmarks.peers.faults import SIDES, Cell, Side, cells, chosen, run_cell
from benchmarks.peers.faults_verdict import Observed, Strength, judge
from benchmarks.peers.faulty import Heartbeat, Run

FAULT_AT = 100.0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(directory=tmp_path, fault="nan")
    made.open()
    return made


def progress(at: float, received: int, **values: Any) -> Mapping[str, Any]:
    made = {"made": received + 10, "received": received, "bad_rows": 0, "bad_params": False}
    return {"event": "progress", "at": at, **made, **values}


CALM = Observed(
    fault_at=FAULT_AT,
    until=120.0,
    ended=False,
    exit_code=0,
    full_since=102.5,
    working=2,
    made=2000,
    notes=[progress(at, 100 * i) for i, at in enumerate((97.0, 98.0, 99.0, 101.0, 104.0, 119.0))],
    said="",
)
ERROR = {"event": "error", "at": 103.0, "type": "EOFError", "message": ""}


def test_one_environment_of_several_misbehaves_once_and_continues(run: Run) -> None:
    envs = [run.make_env() for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    run.ask("flag")
    obs, reward, *_ = envs[0].step(0)
    assert np.isnan([*obs, reward]).all()
    assert run.beats() == {}  # no observer can see yet that it runs
    for env in envs:
        obs, reward, *_ = env.step(0)
        assert np.isfinite([*obs, reward]).all()
        env.close()
    assert run.beats()[os.getpid()].steps == 2
    assert [note["pid"] for note in run.notes("fault")] == [os.getpid()]


def test_strength_counts_the_processes_that_work_since_the_fault() -> None:
    strength = Strength(FAULT_AT)
    assert strength.look({1: Heartbeat(99.9, 5), 2: Heartbeat(100.1, 5)}, 100.2) == 1
    assert (
        strength.look(
            {1: Heartbeat(99.9, 5), 2: Heartbeat(101.0, 9), 3: Heartbeat(100.9, 1)}, 101.1
        )
        == 2
    )
    assert strength.full_since == 100.9
    assert strength.look({3: Heartbeat(100.9, 1), 2: Heartbeat(109.9, 5)}, 110.0) == 1
    assert strength.full_since is None


SHORT = replace(CALM, full_since=None, working=1)
STUCK = [*CALM.notes[:5], progress(119.0, CALM.notes[4]["received"])]  # turns, but nothing new


@pytest.mark.parametrize(
    ("seen", "outcome", "after_s", "message"),
    [
        (CALM, "recovered", 2.5, ""),
        (replace(CALM, notes=[*CALM.notes, progress(119.5, 900, bad_rows=3)]), "learned", 2.5, ""),
        (SHORT, "short", 20.0, ""),
        (replace(SHORT, notes=STUCK), "hung", 20.0, ""),
        (replace(CALM, ended=True, notes=[*CALM.notes, ERROR]), "ended", 3.0, "EOFError"),
        (replace(CALM, ended=True, exit_code=-9), "ended", 20.0, ""),
        (
            replace(CALM, said="progress 1\n  raise\n\x1b[33m(x pid=7) A worker died\x1b[0m\n"),
            "recovered",
            2.5,
            "A worker died",
        ),
    ],
)
def test_what_became_of_a_run(seen: Observed, outcome: str, after_s: float, message: str) -> None:
    found = judge(seen)
    assert (found["outcome"], found["after_s"], found["message"]) == (outcome, after_s, message)


def test_what_is_lost_is_what_made_and_received_steps_drift_apart_by() -> None:
    before = [progress(90.0 + i, 100 * i, made=100 * i + 64) for i in range(5)]
    after = [progress(110.0 + i, 1000 + 100 * i, made=1000 + 100 * i + 96) for i in range(5)]
    assert judge(replace(CALM, notes=[*before, *after]))["lost"] == 32
    assert judge(replace(CALM, notes=[*CALM.notes, progress(119.5, 900, lost=17)]))["lost"] == 17


@pytest.mark.parametrize(
    ("message", "said", "cause"),
    [(CAUSE, CAUSE, "error"), ("a pipe", CAUSE, "screen"), ("a pipe", "", "")],
)
def test_the_cause_may_be_in_the_error_or_on_the_screen(
    message: str, said: str, cause: str
) -> None:
    notes = [{**ERROR, "message": message}]
    assert judge(replace(CALM, ended=True, notes=notes, said=said))["cause"] == cause


def test_cells_are_chosen_by_name_or_by_what_they_are_below() -> None:
    assert chosen([]) == cells()
    assert [cell.name for cell in chosen(["sb3/nan"])] == ["sb3/nan", "sb3/nan/careful"]
    assert {cell.side for cell in chosen(["sb3"])} == {"sb3"}
    with pytest.raises(SystemExit, match="no cell is called"):
        chosen(["sb3/none"])


STAND_IN = """
import subprocess, sys, threading
from benchmarks.peers.faulty import running

WORKER = '''
import sys
from benchmarks.peers.faulty import make_env
env = make_env(*sys.argv[1:])
env.reset(seed=0)
while True:
    if any(env.step(0)[2:4]):
        env.reset()
'''
with running("", "0") as run:
    command = [sys.executable, "-c", WORKER, str(run.directory), run.fault]
    workers = [subprocess.Popen(command, start_new_session=True) for _ in range(2)]
    received = 0
    while not run.asked("stop"):
        received += 1
        run.progress(received=received, bad_rows=0, bad_params=False)
        for worker in workers:
            if worker.poll() is not None:
                raise EOFError("a worker is gone")
        threading.Event().wait(0.05)
"""


@pytest.mark.processes
def test_a_run_that_ends_at_the_fault_is_seen_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setitem(SIDES, "stand-in", Side(label="stand-in", script="stand_in"))
    monkeypatch.setattr(
        Cell, "command", lambda _, directory: [sys.executable, str(script), str(directory), "kill"]
    )
    monkeypatch.setattr(faults, "_CALM_S", 0.5)
    found, version = run_cell(Cell(side="stand-in", fault="kill"))
    assert (found["outcome"], found["message"], version) == (
        "ended",
        "EOFError: a worker is gone",
        "0",
    )
    assert found["exit_code"] == 1
