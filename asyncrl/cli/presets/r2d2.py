"""R2D2, a DQN with a memory, for small problems whose observations do not tell all."""

from __future__ import annotations

from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.sequences import PrioritizedSequenceReplayConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig

_BURN_IN = 8


def preset() -> RunConfig:
    """Return the settings."""
    return RunConfig(
        agent=R2D2Config(burn_in=_BURN_IN),
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        replay=PrioritizedSequenceReplayConfig(
            capacity=100_000,
            sequence_length=16,
            burn_in=_BURN_IN,
            stride=8,
            n_step=3,
        ),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(
            batch_size=32,
            sync_interval_opt_steps=20,
            books=BookkeepingConfig(eval_interval_opt_steps=200),
        ),
    )
