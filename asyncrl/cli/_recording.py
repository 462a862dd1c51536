"""Who keeps the numbers of a run from the command line."""

from __future__ import annotations

from pathlib import Path

from asyncrl.core.recorder import Recorder
from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.terminal import TerminalRecorder
from asyncrl.training.run_config import RunConfig


def recorder_of(config: RunConfig, run_dir: Path, *, tensorboard: bool, quiet: bool) -> Recorder:
    """Return the recorders of a run as one: a file in its directory, and those asked for."""
    recorders: list[Recorder] = [JsonlRecorder(run_dir / "metrics.jsonl")]
    if tensorboard:
        from asyncrl.recorders.tensorboard import TensorBoardRecorder

        recorders.append(TensorBoardRecorder(run_dir / "tensorboard"))
    if not quiet:
        stop = config.stop_condition()
        target = config.stop_at_return
        recorders.append(
            TerminalRecorder(
                limits=stop.limits() if stop else {},
                target=("eval_reward", target) if target is not None else None,
                setup=Setup(
                    actors=config.actors,
                    envs_per_actor=config.envs_per_actor,
                    samples_per_insert=config.limiter.samples_per_insert,
                ),
            )
        )
    return BackgroundRecorder(recorders)
