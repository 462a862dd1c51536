"""Whatever is killed, nothing is left; and what a script does with processes does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from asyncrl.supervision.local import LocalLauncher
from tests.faults.learners import boards, learner
from tests.support.helpers import wait_until
from tests.support.leftovers import added_shared_memory, shared_memory

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0

Family = list[psutil.Process]
"""The learner, its helper, then actors."""


def the_learner(family: Family) -> None:
    family[0].kill()


def its_helper(family: Family) -> None:
    family[1].kill()


def one_by_one(family: Family) -> None:
    """Stop all of them first, so that none can clean up after another."""
    for process in family:
        process.suspend()
    for process in family:
        process.kill()


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def traces() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("*asyncrl*")}


@pytest.mark.behaviour(number=40)
@pytest.mark.fault("F11", "F35")
@pytest.mark.parametrize("kill", [the_learner, its_helper, one_by_one])
def test_nothing_is_left_whichever_process_is_killed(
    tmp_path: Path, kill: Callable[[Family], None]
) -> None:
    before, shared_before = traces(), shared_memory()
    with learner(tmp_path / "never") as process, boards() as progress:
        wait_until(lambda: all(board.read().turns for board in progress), DEADLINE_S, "some steps")
        assert traces() > before
        (helper,) = psutil.Process(process.pid).children()
        family = [psutil.Process(process.pid), helper, *helper.children()]
        kill(family)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    if kill is its_helper:
        assert "the process that starts actors has exited (code -9)" in err
    wait_until(lambda: not any(map(runs, family)), DEADLINE_S, "all of them gone")
    if kill is one_by_one:
        assert traces() > before, "no process was left to clean up"
        LocalLauncher().close()
    wait_until(lambda: traces() <= before, DEADLINE_S, "their traces gone")
    wait_until(lambda: not added_shared_memory(shared_before), DEADLINE_S, "no shared memory left")


# Everything at the top level, as in a notebook: no guard, and actors must not run it again.
SCRIPT = """
import multiprocessing
import threading

multiprocessing.set_start_method("fork")
lock = threading.Lock()

def hold():
    with lock:
        threading.Event().wait()

for _ in range(4):
    threading.Thread(target=hold, daemon=True).start()

import torch
torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)

from asyncrl import RunConfig, EvaluationConfig, train_async
from asyncrl.learner.stop_conditions import MaxOptSteps
from tests.support.fakes import ConstantConfig, CountingBatch

class Mine(CountingBatch):
    pass

result = train_async(
    ConstantConfig(),
    lambda: Mine(length=5),
    RunConfig(actors=2, evaluate=EvaluationConfig(where="off")),
    stop=MaxOptSteps(20),
    recorder=None,
)
print(result.opt_steps, [actor["restarts"] for actor in result.actors.values()])
print(multiprocessing.Pool(1).map(abs, [-1]))
"""


@pytest.mark.fault("F5", "F38")
def test_script_with_threads_and_another_start_method_trains(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "20 [0, 0]\n[1]\n", done.stderr
