"""`asyncrl replay`: computes an asynchronous run again, from the order that it has recorded."""

from __future__ import annotations

import pdb
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.cli.run_directory import check_run_dir
from asyncrl.core.declared import Count
from asyncrl.core.errors import ConfigError
from asyncrl.extensions.order.recording import ORDER_FILE
from asyncrl.extensions.order.replaying import ReplayedTrainer, build_replay_trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayArguments:
    """Compute a run of `asyncrl train --record-order` again, bit for bit, in one process."""

    run_dir: Annotated[Path, POSITIONAL]
    """Directory of the run."""

    until: Count | None = None
    """Optimisation steps after which to stop. Default: the end of the run."""

    pdb: bool = False
    """Open Python's debugger there; `trainer` has the agent, the replay buffer and the next
    optimisation steps: `trainer.run_step()`."""


parse = partial(parsed, ReplayArguments, "asyncrl replay")


def run(arguments: ReplayArguments) -> int:
    """Replay, and return the exit code: 1 if a model differs from the run's."""
    check_run_dir(arguments.run_dir)
    path = arguments.run_dir / ORDER_FILE
    if not path.exists():
        raise ConfigError(
            f"{arguments.run_dir} has no recorded order, so it cannot be replayed; train with "
            "--record-order"
        )
    trainer = build_replay_trainer(path)
    began_s = time.monotonic()
    with trainer:
        trainer.run_until(arguments.until)
        took_s = time.monotonic() - began_s
        if arguments.pdb:
            pdb.Pdb(nosigint=True).set_trace()  # Ctrl-C stays that of the command
    show(_report(trainer, took_s))
    return 1 if trainer.source.differs else 0


def _report(trainer: ReplayedTrainer, took_s: float) -> str:
    replayed = trainer.source
    parts = replayed.order.parts
    events = sum(part.event_bytes for part in parts) / 1e6
    experience = sum(part.experience_bytes for part in parts) / 1e6
    end = f"; {trainer.interrupter.reason}" if trainer.should_stop else ""
    if replayed.differs is None:
        bits = f"all {replayed.compared} models that were compared are the run's, bit for bit"
    else:
        equal, different = replayed.differs
        bits = (
            f"the models differ from the run's: that of optimisation step {different} does, those "
            f"up to step {equal} do not"
        )
    return (
        f"replayed {trainer.opt_steps} optimisation steps in {took_s:.1f} s: {replayed.stored} "
        f"transitions stored, {replayed.sampled} sampled{end}\n{bits}\n"
        f"the order took {events:.3g} MB of disk space, the experience {experience:.3g} MB"
    )
