"""IMPALA for small problems with discrete actions; CartPole in seconds."""

from __future__ import annotations

from asyncrl.agents.impala import IMPALAConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.trajectories import TrajectoryQueueConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Learn from trajectories long enough for returns of many steps, at the scale returns have."""
    return RunConfig(
        agent=IMPALAConfig(learning_rate=2e-3, normalize_obs=True, normalize_reward=True),
        envs_per_actor=8,
        segment=SegmentConfig(length=64),
        replay=TrajectoryQueueConfig(),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(
            batch_size=512,
            sync_interval_opt_steps=1,
            books=BookkeepingConfig(eval_interval_opt_steps=20),
        ),
    )
