"""Several learners on the command line: runs those beside the first.

The first learner has the run directory, prints and evaluates;
the others are quiet, and save their parts of the replay.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.run_directory import load_starts
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import place_in
from asyncrl.extensions.ranks.lockstep import Group, process_fields
from asyncrl.extensions.ranks.share import join_ranks, several_learners
from asyncrl.run.signals import interrupting
from asyncrl.run.train import build_trainer

if TYPE_CHECKING:
    from asyncrl.cli.flags import TrainArguments
    from asyncrl.run.launchers import RunLauncher

logger = logging.getLogger(__name__)

_RUN_DIR = "run directory"


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
        learners=several_learners,
    )
    with interrupting(interrupter, arguments.config.grace_s) as interrupted, closing(trainer):
        if not trainer.has_ended():
            trainer.train()
    return interrupted.exit_code
