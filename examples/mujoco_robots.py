"""SAC on a MuJoCo robot: `pip install 'asyncrl[mujoco]'`.

SAC usually makes one optimisation step per environment step, so the learner is the bottleneck.
Checkpoints contain the best model and everything that is needed to resume.

    python -m examples.mujoco_robots
    python -m examples.mujoco_robots --resume    # continues from the newest checkpoint
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncrl import (
    AsyncTrainerConfig,
    EnvConfig,
    MaxOptSteps,
    RateLimiterConfig,
    ReachesUpperBound,
    RunConfig,
    TrainResult,
    train_async,
)
from asyncrl.agents.sac import SACConfig
from asyncrl.recorders.terminal import TerminalRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig

BATCH_SIZE = 256


def main(
    env_id: str = "HalfCheetah-v5",
    max_opt_steps: int = 300_000,
    checkpoint_dir: Path | None = Path("runs/mujoco_robots"),
    *,
    resume: bool = False,
) -> TrainResult:
    """Train until the mean return reaches 5,000, or for `max_opt_steps` optimisation steps."""
    stop = ReachesUpperBound("eval_reward", 5000.0) | MaxOptSteps(max_opt_steps)
    return train_async(
        SACConfig(hidden=(256, 256)),
        EnvConfig(id=env_id, n_envs=4).build,
        RunConfig(
            actors=2,
            replay=UniformReplayConfig(capacity=300_000),
            # Each transition is sampled `BATCH_SIZE` times: one optimisation step per environment
            # step.
            limiter=RateLimiterConfig(samples_per_insert=BATCH_SIZE),
            trainer=AsyncTrainerConfig(
                batch_size=BATCH_SIZE,
                sync_interval_opt_steps=10,
            ),
            evaluate=EvaluationConfig(interval_opt_steps=5000),
        ),
        stop=stop,
        checkpoint_dir=checkpoint_dir,
        resume=resume,
        recorder=TerminalRecorder(limits=stop.limits(), target=("eval_reward", 5000.0)),
    )


if __name__ == "__main__":
    main(resume="--resume" in sys.argv)
