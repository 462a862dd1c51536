"""What a script does with processes does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0

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
