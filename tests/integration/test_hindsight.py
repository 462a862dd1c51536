"""Hindsight in whole runs: it learns what uniform replay cannot, in both modes, and resumes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxOptSteps, MaxSeconds, ReachesUpperBound
from asyncrl.learner.train_result import TrainResult
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.replay.ring_config import RingConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer, train_sync
from tests.support.bit_flip import BitFlip
from tests.support.reach import Reach

N_BITS = 8
HINDSIGHT = HindsightReplayConfig(capacity=20_000, gamma=0.98, horizon=N_BITS)
SYNC = RunConfig(
    mode="sync",
    replay=HINDSIGHT,
    trainer=AsyncTrainerConfig(batch_size=256),
    limiter=RateLimiterConfig(samples_per_insert=32.0, min_size=500),
    segment=SegmentConfig(length=N_BITS),
    evaluate=EvaluationConfig(interval_opt_steps=100),
)
UNSCORED = EvaluationConfig(where="off")
make_env = make_batch(partial(BitFlip, N_BITS), 16)


def learn(replay: RingConfig, env_steps: int) -> TrainResult:
    agent = DQNConfig(hidden=(64,), learning_rate=5e-3, device="cpu")
    stop = ReachesUpperBound("eval/success_rate", 0.9) | MaxEnvSteps(env_steps)
    return train_sync(agent, make_env, replace(SYNC, replay=replay), stop=stop)


def test_bits_are_flipped_with_hindsight() -> None:
    assert "success_rate" in learn(HINDSIGHT, 20_000).stop_reason


def test_bits_are_not_flipped_without_hindsight() -> None:
    assert "success_rate" not in learn(UniformReplayConfig(gamma=0.98), 3000).stop_reason


@pytest.mark.parametrize("launcher", ["", "process"])
def test_rewards_are_those_of_environments_with_other_keyword_arguments(
    launcher: Any, tmp_path: Path
) -> None:
    relabelled = {"replay": replace(HINDSIGHT, relabelled=1.0), "evaluate": UNSCORED}
    agent, envs = SACConfig(hidden=(8,), device="cpu"), make_batch(Reach, 2)
    parts: Any = {"stop": MaxOptSteps(2) | MaxSeconds(60), "checkpoint_dir": tmp_path}
    config = replace(SYNC, **relabelled)
    if launcher:
        config = RunConfig(actors=1, launcher=launcher, **relabelled)
    build = partial(build_trainer, config, agent=agent, env=envs, **parts)
    with build() as trainer:
        trainer.set_env_kwargs({"near": 3.0})
        batch = next(trainer.batches())
        assert not batch["reward"].any(), "every place is near every goal"
        trainer.learn(batch)
    with build(resume=True) as trainer:
        assert not next(trainer.batches())["reward"].any(), "also when the run is resumed"


@pytest.mark.parametrize("agent", [PPOConfig(), R2D2Config()])
def test_other_kinds_of_agents_are_refused(agent: PPOConfig | R2D2Config) -> None:
    with pytest.raises(ConfigError, match="but HindsightReplayConfig returns single transitions"):
        build_trainer(SYNC, agent=agent, env=make_env)


def test_environment_without_goals_is_refused() -> None:
    with pytest.raises(ConfigError, match="hindsight needs observations that are dicts"):
        build_trainer(SYNC, agent=DQNConfig(), env=EnvConfig(id="CartPole-v1").build)
