"""The time of day may jump when the clock is set; it affects only what is shown."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

import asyncrl
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from tests.faults.runs import adds_up, with_restarts
from tests.faults.worlds import DEADLINE_S, JumpsInTime
from tests.integration.test_train_async import run

ROOT = Path(asyncrl.__file__).parent

WALL_CLOCK = re.compile(
    r"\btime\.(time|time_ns|localtime|gmtime|ctime|strftime)\b|\bdate(time)?\.(now|utcnow|today)\b"
    r"|from time import"
)

SHOWN = {
    "cli/run_directory.py": "when a run was started",
    "cli/runs.py": "when each run was started",
    "cli/train.py": "the name of a run's directory",
    "recorders/jsonl.py": "each record has the time of day",
    "recorders/mlflow.py": "its metrics carry the time of day",
    "recorders/tensorboard.py": "its events carry the time of day",
    "recorders/terminal.py": "lines off a terminal begin with the time of day",
}
"""Where the time of day is only shown, and why."""


@pytest.mark.fault("F33")
def test_nothing_asks_for_the_time_of_day_but_to_show_it() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert found == SHOWN.keys()


@pytest.mark.processes
@pytest.mark.fault("F33")
def test_run_does_not_notice_clocks_that_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: jumps.uniform(-1e9, 1e10))
    result, trainer = run(
        with_restarts(2, step_timeout_s=30.0),
        make_env=JumpsInTime,
        stop=MaxOptSteps(100) | MaxSeconds(DEADLINE_S),
    )
    assert result.opt_steps == 100
    assert adds_up(trainer)
    assert [actor["restarts"] for actor in result.actors.values()] == [0, 0]
