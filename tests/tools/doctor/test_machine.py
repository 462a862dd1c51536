"""Findings about a machine, and the remedies they name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.segment import ColumnSpec, make_schema
from asyncrl.metrics.limits import Room
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.tools.doctor.machine import (
    MachineFacts,
    PlannedRun,
    findings,
    memory_bytes,
    read_facts,
)

GIB = 2**30
GOOD = MachineFacts(
    cores=8,
    memory=Room(16 * GIB, 12 * GIB),
    descriptors=4096,
    temp=Path("/tmp"),  # nothing is written there
    temp_bytes=20 * GIB,
    shm_bytes=8 * GIB,
    thread_settings=(),
    torch="2.13.0",
    gpus=(),
    start_s=0.4,
    forked=True,
)


BIG = PlannedRun(name="dqn-atari", replay_bytes=13 * GIB, actors=8)
SMALL = PlannedRun(name="dqn", replay_bytes=1 << 20, actors=8)


def test_good_machine_gets_no_findings() -> None:
    assert {finding.level for finding in findings(GOOD)} == {"ok"}
    assert not any(finding.advice for finding in findings(GOOD))


@pytest.mark.parametrize(
    ("facts", "level", "check", "words"),
    [
        ({"cores": 1}, "warn", "cores", "train_sync"),
        ({"quota": 0.5}, "warn", "cores", "--cpus"),
        ({"memory": Room(16 * GIB, GIB)}, "warn", "memory", "fewer actors"),
        ({"tasks": Room(100, 46)}, "warn", "processes", "--pids-limit"),
        ({"tasks": Room(18, 18)}, "fail", "processes", "ulimit -u"),
        ({"tasks": Room(46, 46), "planned_run": SMALL}, "fail", "processes", "--pids-limit"),
        ({"descriptors": 44}, "warn", "descriptors", "ulimit -n"),
        ({"descriptors": 31}, "fail", "descriptors", "ulimit -n"),
        ({"descriptors": 45, "planned_run": SMALL}, "fail", "descriptors", "ulimit -n"),
        ({"temp_bytes": -1}, "fail", "temp space", "TMPDIR"),
        ({"temp_bytes": 1 << 20}, "warn", "temp space", "free some space"),
        ({"thread_settings": (("OMP_NUM_THREADS", "64"),)}, "warn", "threads", "8 available cores"),
        (
            {"quota": 1.5, "thread_settings": (("OMP_NUM_THREADS", "4"),)},
            "warn",
            "threads",
            "1.5 available cores",
        ),
        ({"start_s": 19.0}, "warn", "actors", "slow"),
        ({"cuda": True}, "fail", "actors", "CUDA does not work in forks"),
        ({"planned_run": BIG}, "fail", "memory", "replay.memory_map"),
        ({"planned_run": replace(BIG, replay_bytes=11 * GIB)}, "warn", "memory", "fewer actors"),
        ({"start_s": float("inf")}, "fail", "actors", "ulimit -u"),
        ({"start_error": "no processes left"}, "fail", "actors", "ulimit -u"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    facts: dict[str, Any], level: str, check: str, words: str
) -> None:
    wrong = [finding for finding in findings(replace(GOOD, **facts)) if finding.level != "ok"]
    assert [(finding.level, finding.check) for finding in wrong] == [(level, check)]
    assert words in wrong[0].advice


def test_memory_of_a_replay_is_what_is_not_in_a_file(tmp_path: Path) -> None:
    schema = make_schema(
        [ColumnSpec("obs", "uint8", (84, 84)), ColumnSpec("flags", "uint8")], length=8, lookahead=1
    )
    in_memory = UniformReplayConfig(capacity=1000)
    size = memory_bytes(in_memory, schema)
    assert size == in_memory.nbytes(schema) > 1000 * 84 * 84
    assert memory_bytes(replace(in_memory, memory_map=tmp_path), schema) < 0.01 * size
    assert memory_bytes(TrajectoryQueueConfig(), schema) == 0


@pytest.mark.processes
@pytest.mark.usefixtures("fresh_helpers")
def test_this_machine_can_be_looked_at() -> None:
    facts = read_facts()
    assert facts.cores >= 1
    assert 0 < facts.memory.left <= facts.memory.limit
    assert facts.descriptors is None or facts.descriptors > 0
    assert facts.tasks is None or 0 <= facts.tasks.left <= facts.tasks.limit
    assert facts.start_s < float("inf"), facts.start_error
    assert facts.forked is (sys.platform == "linux")
    assert not facts.cuda
    assert len(list(findings(facts))) == 9
