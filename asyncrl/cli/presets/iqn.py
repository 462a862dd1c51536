"""IQN for small problems with discrete actions: quantiles of returns; CartPole in seconds."""

from __future__ import annotations

from asyncrl.agents.iqn import IQNConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Return the settings."""
    return RunConfig(
        agent=IQNConfig(n_acting_quantiles=8),
        envs_per_actor=16,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(n_step=5),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(
            batch_size=256,
            sync_interval_opt_steps=20,
            books=BookkeepingConfig(eval_interval_opt_steps=250),
        ),
    )
