"""Several learners on the command line: starts them, and runs those beside the first.

`--learners K` starts K processes of the same command, as `torchrun --nproc-per-node K -m asyncrl`
does, and passes signals on to them. The first learner has the run directory, prints and evaluates;
the others are quiet, and save their parts of the replay.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.run_directory import load_starts
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.learner.lockstep import STORE_FILE, Group, place_in, process_fields, process_state
from asyncrl.training.ranks import join_ranks
from asyncrl.training.run import build_trainer
from asyncrl.training.signals import Interrupted, interrupting

if TYPE_CHECKING:
    from asyncrl.cli.flags import TrainArguments
    from asyncrl.training.launchers import RunLauncher

logger = logging.getLogger(__name__)

FLAG = "--learners"
_POLL_S = 0.05
_OTHERS_S = 90.0
"""Seconds in which the other learners must end after one has failed: they save a checkpoint."""

_RUN_DIR = "run directory"


def learners_in(args: Sequence[str]) -> int:
    """Return how many learners a command line must start: 1 in one that was started as a rank."""
    if "RANK" in os.environ:
        return 1
    given = "1"
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == FLAG:
            given = value if equals else next(iter(args[i + 1 :]), "")
    return int(given) if given.isdecimal() else 1


def start_learners(world: int, args: Sequence[str]) -> int:
    """Run a command line in `world` processes until all have ended; return the exit code."""
    interrupter = Interrupter()
    with ExitStack() as undo:
        private = undo.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-learners-"))
        interrupted = undo.enter_context(interrupting(interrupter))
        interrupted.disarm()  # the second signal kills the learners, and the rest is tidied up
        ranks: list[subprocess.Popen[bytes]] = []
        undo.callback(_kill, ranks)
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
            place["LOCAL_WORLD_SIZE"] = world
            environ = {name: str(value) for name, value in place.items()}
            environ[STORE_FILE] = str(Path(private) / "store")
            ranks.append(
                subprocess.Popen(  # noqa: S603  # the same command again
                    [sys.executable, "-P", "-m", "asyncrl", *args],
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C reaches them once, through us
                )
            )
        return _wait(ranks, interrupter, interrupted)


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]], interrupter: Interrupter, interrupted: Interrupted
) -> int:
    """Wait until all have ended, and pass signals on; return the exit code of the first failure."""
    code, deadline, is_forwarded = 0, math.inf, False
    while running := [rank for rank in ranks if rank.poll() is None]:
        if interrupted.again:
            logger.warning("interrupted twice; the learners are killed")
            _kill(running)
            return interrupted.exit_code
        if interrupter.save_requested:  # all save when one is asked to
            interrupter.save_requested = False
            running[0].send_signal(signal.SIGUSR1)
        if interrupter.is_set and not is_forwarded:
            is_forwarded = True
            for rank in running:
                rank.send_signal(interrupted.exit_code - 128)
        code = code or _first_failure(ranks)
        if code and not is_forwarded and deadline == math.inf:
            deadline = time.monotonic() + _OTHERS_S
        if time.monotonic() >= deadline or (code and all(map(_is_stopped, running))):
            _kill(running)
        time.sleep(_POLL_S)
    return code or _first_failure(ranks)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the exit code of a learner that has failed, 0 if none has."""
    codes = [rank.returncode for rank in ranks if rank.returncode]
    return max(codes[0], 1) if codes else 0


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process can never end by itself, as after SIGSTOP."""
    return process_state(process.pid) == "T"


def _kill(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()


def group_of(arguments: TrainArguments) -> Group | None:
    """Join the other learners of a command, if there are any; refuse what they cannot train."""
    place = place_in(os.environ)
    config, asked = arguments.config, arguments.output.learners
    if place is None:
        if asked > 1:
            raise ConfigError(
                f"--learners {asked} is set, but so is RANK, which makes this process the only "
                "learner; unset RANK"
            )
        return None
    if asked not in {1, place.world}:
        raise ConfigError(
            f"--learners {asked} starts as many learners, but this is one of {place.world} "
            "already; omit the flag under torchrun"
        )
    if config.mode != "async":
        raise ConfigError(
            f"--mode {config.mode} trains with one learner, but {place.world} were started; use "
            "--mode async, or one learner"
        )
    if arguments.auto:
        raise ConfigError(
            "--actors auto measures with one learner; find the number with asyncrl bench tune, and "
            "give it multiplied by the number of learners"
        )
    return join_ranks(config.ranks)


def after_restart(group: Group | None, arguments: TrainArguments) -> TrainArguments | None:
    """Return how learners that torchrun has started again continue their run; None for a new one.

    They resume it, or begin again in its directory if it had no checkpoint yet. The directory of a
    run that another command began is refused, as at the first start.
    """
    place = place_in(os.environ)
    if group is None or place is None or not place.restarts:
        return None
    run_dir = arguments.output.run_dir
    if run_dir is None:
        raise ConfigError(
            "torchrun has restarted the learners, but the run to resume is unknown without "
            "--run-dir; set it if --max-restarts is set"
        )
    if not (run_dir / "config.yaml").exists() or _starter_of(run_dir) != started_by():
        return None
    checkpoints = run_dir / "checkpoints"
    if Checkpointer(checkpoints).latest():
        return replace(arguments, resume=True)
    logger.warning("torchrun has restarted a run without a checkpoint; it begins again")
    clear_for_restart(checkpoints)
    return arguments


def clear_for_restart(checkpoints: Path) -> None:
    """Delete what a run without a checkpoint may have left, before it begins again."""
    Checkpointer(checkpoints).discard("best")
    for shard in checkpoints.glob("rank-*"):  # saved shortly before rank 0 would have
        shutil.rmtree(shard, ignore_errors=True)


def started_by() -> dict[str, str]:
    """Return what identifies the process that started this rank, and may start it again."""
    if place_in(os.environ) is None:
        return {}
    parent = os.getppid()
    return {
        "launcher": " ".join([socket.gethostname(), str(parent), *process_fields(parent)[19:20]])
    }


def _starter_of(run_dir: Path) -> dict[str, object]:
    """Return what `started_by` did in the newest start of a run."""
    match load_starts(run_dir):
        case [*_, {"launcher": launcher}]:
            return {"launcher": launcher}
    return {}


def post_run_dir(group: Group | None, run_dir: Path, *, resumes: bool) -> None:
    """Post the directory of the run, and whether it is resumed, for the other learners."""
    if group is not None:
        group.post(_RUN_DIR, f"{int(resumes)} {run_dir.absolute()}")


def follow(group: Group, arguments: TrainArguments, launcher: RunLauncher | None) -> int:
    """Train as a learner beside the first one; return the exit code."""
    resumes, _, run_dir = group.wait_posted(_RUN_DIR, 0).partition(" ")
    interrupter = Interrupter()
    trainer = build_trainer(
        arguments.config,
        launcher=launcher,
        recorder=None,
        checkpoint_dir=Path(run_dir) / "checkpoints",
        resume=(arguments.resume or True) if int(resumes) else False,
        interrupter=interrupter,
    )
    with interrupting(interrupter, arguments.config.grace_s) as interrupted, closing(trainer):
        if not trainer.has_ended():
            trainer.train()
    return interrupted.exit_code
