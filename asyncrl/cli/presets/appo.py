"""PPO with V-trace: actors need not wait until a new model is there."""

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
    """Allow for actions of models that are some batches old."""
    return RunConfig(
        agent=PPOConfig(correction="vtrace"),
        envs_per_actor=8,
        segment=SegmentConfig(length=32),
        transport=ZmqTransportConfig(window=2),
        replay=TrajectoryQueueConfig(),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(
            batch_size=1024,
            sync_interval_opt_steps=1,
            books=BookkeepingConfig(eval_interval_opt_steps=5),
        ),
    )
