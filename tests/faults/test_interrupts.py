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
from tests.cli.console import SLOW, misbehaving_env
from tests.support.helpers import wait_until
from tests.support.warm import Process, started

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0


def as_a_terminal(process: Process, number: signal.Signals) -> None:
    os.killpg(process.pid, number)


def as_a_scheduler(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process and all below it, as service managers do too."""
    learner = psutil.Process(process.pid)
    for each in [*reversed(learner.children(recursive=True)), learner]:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            each.send_signal(number)


def has_children(process: Process) -> bool:
    return bool(psutil.Process(process.pid).children())


def starts_its_actor(process: Process) -> bool:
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "asyncrl actor" in " ".join(child.cmdline()):
                return True
    return False


def looks_at_its_environment(process: Process) -> bool:
    return any(child.children() for child in psutil.Process(process.pid).children())


@pytest.mark.fault("F12", "F14")
@pytest.mark.parametrize(
    ("number", "moment", "send"),
    [
        (signal.SIGINT, looks_at_its_environment, as_a_terminal),
        (signal.SIGINT, starts_its_actor, as_a_terminal),
        (signal.SIGTERM, starts_its_actor, as_a_scheduler),
    ],
)
def test_signal_to_every_process_of_a_job_is_answered_by_the_learner_alone(
    number: signal.Signals,
    moment: Callable[[Process], bool],
    send: Callable[[Process, signal.Signals], None],
    tmp_path: Path,
) -> None:
    arguments = [*SLOW, "--run-dir", "x", "--supervision.restart.max-restarts", "0"]
    if moment is looks_at_its_environment:
        arguments += misbehaving_env("sleep", at="make")
    with started("asyncrl", ["train", "dqn", *arguments], cwd=tmp_path) as process:
        wait_until(lambda: moment(process), DEADLINE_S, "the moment")
        send(process, number)
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
    arguments = [*SLOW, "--run-dir", "x", "--save.interval-opt-steps", "20"]
    arguments += ["--evaluate.where", "off"]
    checkpoints = Checkpointer(tmp_path / "x/checkpoints")
    with started("code", [HANGING_DISK, "train", "dqn", *arguments], cwd=tmp_path) as process:
        wait_until(checkpoints.latest, DEADLINE_S, "a first checkpoint")
        (tmp_path / "hang").touch()
        wait_until((tmp_path / "hangs").exists, DEADLINE_S, "a checkpoint to be under way")
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: not has_children(process), DEADLINE_S, "only the checkpoint to be left")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    left = checkpoints.load_latest()
    assert left.meta["opt_steps"] == int(checkpoints.latest() or 0)
    checkpoints.save("1000000", left.groups, left.meta)
    assert checkpoints.latest() == "1000000"
