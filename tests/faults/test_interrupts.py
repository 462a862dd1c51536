"""Ctrl-C as a terminal sends it, to the whole group, at awkward moments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from tests.cli.console import TINY, misbehaving_env
from tests.support.helpers import wait_until
from tests.support.warm import Process, started

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0


def send_to_all(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process and all below it, as schedulers and service managers do."""
    learner = psutil.Process(process.pid)
    for each in [*reversed(learner.children(recursive=True)), learner]:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            each.send_signal(number)


def imports(process: Process, _: Path) -> bool:
    return any("torch" in m.path for m in psutil.Process(process.pid).memory_maps())


def starts_its_helper(process: Process, _: Path) -> bool:
    return bool(psutil.Process(process.pid).children())


def starts_its_actor(process: Process, _: Path) -> bool:
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "asyncrl actor" in " ".join(child.cmdline()):
                return True
    return False


def looks_at_its_environment(process: Process, _: Path) -> bool:
    return any(child.children() for child in psutil.Process(process.pid).children())


def writes(_: Process, run_dir: Path) -> bool:
    return (run_dir / "metrics.jsonl").exists()


@pytest.mark.fault("F12")
@pytest.mark.parametrize(
    "moment",
    [imports, starts_its_helper, looks_at_its_environment, starts_its_actor, writes],
)
def test_ctrl_c_at_any_moment_is_answered_by_the_learner_alone(
    tmp_path: Path, moment: Callable[[Process, Path], bool]
) -> None:
    arguments = ["train", "dqn", *TINY, "--run-dir", "x"]
    if moment is looks_at_its_environment:
        arguments += misbehaving_env("sleep", at="make")
    with started("asyncrl", arguments, cwd=tmp_path, fresh=moment is imports) as process:
        wait_until(lambda: moment(process, tmp_path / "x"), DEADLINE_S, "the moment")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    assert err in {"", "asyncrl: interrupted by SIGINT\n"}  # before the run has begun


@pytest.mark.fault("F12", "F14")
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, starts_its_helper),
        (signal.SIGINT, starts_its_actor),
        (signal.SIGTERM, starts_its_actor),
    ],
)
def test_signal_to_every_process_of_a_job_is_answered_by_the_learner_alone(
    tmp_path: Path, number: signal.Signals, moment: Callable[[Process, Path], bool]
) -> None:
    arguments = [*TINY, "--run-dir", "x", "--supervision.restart.max-restarts", "0"]
    with started("asyncrl", ["train", "dqn", *arguments], cwd=tmp_path) as process:
        wait_until(lambda: moment(process, tmp_path / "x"), DEADLINE_S, "the moment")
        send_to_all(process, number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in out + err
    assert err in {"", f"asyncrl: interrupted by {number.name}\n"}  # before the run has begun


# The disk hangs as soon as the test says so.
HANGING_DISK = """
import os, sys, threading
from pathlib import Path
from asyncrl.cli.main import main

fsync = os.fsync

def hanging(descriptor):
    if Path("hang").exists():
        Path("hangs").touch()
        threading.Event().wait()
    fsync(descriptor)

os.fsync = hanging
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.fault("F13", "F18")
def test_second_ctrl_c_during_a_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    arguments = [*TINY, "--run-dir", "x", "--save.interval-opt-steps", "20"]
    arguments += ["--evaluate.where", "off"]
    checkpoints = Checkpointer(tmp_path / "x/checkpoints")
    with started("code", [HANGING_DISK, "train", "dqn", *arguments], cwd=tmp_path) as process:
        wait_until(checkpoints.latest, DEADLINE_S, "a first checkpoint")
        (tmp_path / "hang").touch()
        wait_until((tmp_path / "hangs").exists, DEADLINE_S, "a checkpoint to be under way")
        os.killpg(process.pid, signal.SIGINT)
        wait_until(
            lambda: not starts_its_helper(process, tmp_path),
            DEADLINE_S,
            "only the checkpoint to be left",
        )
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    left = checkpoints.load_latest()
    assert left.meta["opt_steps"] == int(checkpoints.latest() or 0)
    checkpoints.save("1000000", left.groups, left.meta)
    assert checkpoints.latest() == "1000000"
