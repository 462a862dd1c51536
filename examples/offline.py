"""Offline learning: a run saves its replay, and IQL learns from it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from asyncrl import (
    EnvConfig,
    MaxEnvSteps,
    MaxOptSteps,
    RunConfig,
    TrainResult,
    preset,
    train_from_data,
    train_sync,
)
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig


def main(env_steps: int = 10_000, opt_steps: int = 4000) -> TrainResult:
    """Train DQN and save its experience, then train IQL on it."""
    make_env = EnvConfig(id="CartPole-v1", n_envs=8).build
    replay = UniformReplayConfig(capacity=20_000)

    with tempfile.TemporaryDirectory() as name:
        data = Path(name)
        train_sync(
            DQNConfig(hidden=(64, 64)),
            make_env,
            RunConfig(
                replay=replay,
                limiter=RateLimiterConfig(samples_per_insert=16.0),
                evaluate=EvaluationConfig(where="off"),
            ),
            stop=MaxEnvSteps(env_steps),
            checkpoint_dir=data,
        )
        # From here on, the environment is used only for evaluation.
        result = train_from_data(
            IQLConfig(hidden=(64, 64), learning_rate=1e-3, tau=0.02, expectile=0.9),
            data,
            make_env,
            replace(
                preset("iql"), replay=replay, evaluate=EvaluationConfig(interval_opt_steps=1000)
            ),
            stop=MaxOptSteps(opt_steps),
        )
    print(f"{result.best_score:.0f} from {env_steps} transitions of an untrained agent")
    return result


if __name__ == "__main__":
    main()
