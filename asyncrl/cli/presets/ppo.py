"""PPO for small problems, with discrete or continuous actions; close to on-policy."""

from __future__ import annotations

from asyncrl.agents.ppo import PPOConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.trajectories import TrajectoryQueueConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig
from asyncrl.transports.zeromq import ZmqTransportConfig


def preset() -> RunConfig:
    """Learn from batches that are few models old, since as little as possible is under way."""
    return RunConfig(
        agent=PPOConfig(),
        envs_per_actor=8,
        segment=SegmentConfig(length=32),
        transport=ZmqTransportConfig(window=1),
        replay=TrajectoryQueueConfig(),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(
            batch_size=1024,
            sync_interval_opt_steps=1,
            books=BookkeepingConfig(eval_interval_opt_steps=5),
        ),
    )
