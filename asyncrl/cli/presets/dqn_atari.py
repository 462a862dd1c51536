"""DQN for Atari games, from pixels."""

from __future__ import annotations

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.exploration import EpsilonLadder
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Follow Mnih et al. (2015) in what is kept and how often it is sampled, Ape-X in the rest."""
    return RunConfig(
        agent=DQNConfig(
            hidden=(512,),
            learning_rate=1e-4,
            loss="huber",
            tau=0.0,
            target_interval_opt_steps=2000,
            exploration=EpsilonLadder(decay_env_steps=100_000),
        ),
        env="ALE/Pong-v5",
        segment=SegmentConfig(length=64, frame_stack=4),
        replay=UniformReplayConfig(capacity=200_000, n_step=3),
        limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=10_000),
        trainer=AsyncTrainerConfig(
            batch_size=32, books=BookkeepingConfig(eval_interval_opt_steps=10_000)
        ),
    )
