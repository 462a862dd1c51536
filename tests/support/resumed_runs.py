"""Small runs that are resumed, and killed at a step of one's choice.

What tests compare: the final checkpoint of an unbroken synchronous run, and
what an asynchronous run was restored to.

    python -m tests.support.resumed_runs asynchronous|CASE DIRECTORY KILL_AFTER_OPT_STEPS
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.sac import SACConfig
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import AgentConfig
from asyncrl.core.callback import Callback, Training
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_async, train_sync
from tests.support import warm
from tests.support.helpers import WaitsForSaves

EVERY = 40
"""Optimisation steps between two checkpoints: in the middle of a round."""

LAST = 200


_DEADLINE_S = 100.0

DQN_SMALL = DQNConfig(
    hidden=(16,),
    device="cpu",
    exploration=EpsilonGreedy(epsilon=Schedule.linear(1.0, 0.05, 400)),
    threads=1,
)
_SAC = SACConfig(
    hidden=(16,),
    device="cpu",
    random_env_steps=150,
    noise_correlation_env_steps=5.0,
    normalize_reward=True,
    threads=1,
)

CASES: Mapping[str, tuple[AgentConfig, str, ReplayBufferConfig]] = {
    "dqn": (DQN_SMALL, "CartPole-v1", UniformReplayConfig(capacity=300, n_step=3)),
    "dqn-prioritized": (DQN_SMALL, "CartPole-v1", PrioritizedReplayConfig(capacity=300, n_step=2)),
    "sac": (_SAC, "Pendulum-v1", UniformReplayConfig(capacity=1000)),
}
"""Of synchronous runs: agent, environment and replay."""


EPSILON = Schedule.linear(1.0, 0.05, 50_000)
"""So slow that a run is always on its way."""

SCHEDULED = replace(DQN_SMALL, exploration=EpsilonGreedy(epsilon=EPSILON))


class Dies(Callback):
    """Kills the run with SIGKILL after a number of optimisation steps."""

    def __init__(self, at: float) -> None:
        self.at = at

    def step(self, trainer: Training) -> None:
        if trainer.opt_steps >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two checkpoints hold the same, except for durations."""
    numbers = [
        {k: v for k, v in c.meta.items() if k not in {"wall_s", "train_s", "config"}}
        for c in (a, b)
    ]
    return (
        numbers[0] == numbers[1]
        and a.groups.keys() == b.groups.keys()
        and all(
            a.groups[group].keys() == b.groups[group].keys()
            and all(np.array_equal(v, b.groups[group][k]) for k, v in a.groups[group].items())
            for group in a.groups
        )
    )


def sync_run(
    case: str, directory: Path, *, resume: bool = False, dies_at: float = math.inf
) -> Checkpoint:
    """Train synchronously up to the last step, or die; return the checkpoint of the last step."""
    agent, env, replay = CASES[case]
    config = RunConfig(
        seed=3,
        replay=replay,
        trainer=AsyncTrainerConfig(batch_size=16),
        limiter=RateLimiterConfig(samples_per_insert=12.0, min_size=60),
        evaluate=EvaluationConfig(interval_opt_steps=90),
        save=SaveConfig(interval_opt_steps=EVERY, keep=0),
        record=RecordConfig(interval_s=0.0),
    )
    train_sync(
        agent,
        EnvConfig(id=env, n_envs=2).build,
        config,
        stop=MaxOptSteps(LAST),
        callbacks=[Dies(dies_at)],
        checkpoint_dir=directory,
        resume=resume,
        recorder=None,
    )
    return Checkpointer(directory).load(str(LAST))


def async_config(**save: Any) -> RunConfig:
    """Return settings of a small asynchronous run; `save` are those of its checkpoints."""
    return RunConfig(
        actors=2,
        segment=SegmentConfig(length=8),
        replay=UniformReplayConfig(capacity=4000),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=200),
        trainer=AsyncTrainerConfig(batch_size=32),
        evaluate=EvaluationConfig(where="off"),
        record=RecordConfig(interval_s=0.2),
        save=SaveConfig(**save),
    )


def cartpole() -> MakeBatchEnv:
    """Return what makes the environment of asynchronous runs."""
    return EnvConfig(id="CartPole-v1", n_envs=2).build


def dies(case: str, directory: Path, step: int) -> int:
    """Train in a process that is killed at a step; return its exit code."""
    arguments = ["tests.support.resumed_runs", case, str(directory), str(step)]
    return warm.run("module", arguments, cwd=directory.parent, timeout_s=_DEADLINE_S).returncode


def _async_run(directory: Path, dies_after: int) -> None:
    """Begin, or continue, and die a number of steps later."""
    latest = Checkpointer(directory).latest()
    train_async(
        SCHEDULED,
        cartpole(),
        async_config(interval_opt_steps=EVERY),
        callbacks=[WaitsForSaves(directory), Dies(int(latest or 0) + dies_after)],
        checkpoint_dir=directory,
        resume=latest is not None,
        recorder=None,
    )


if __name__ == "__main__":
    if sys.argv[1] == "asynchronous":
        _async_run(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sync_run(sys.argv[1], Path(sys.argv[2]), dies_at=int(sys.argv[3]))
