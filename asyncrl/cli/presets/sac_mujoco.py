"""Soft actor-critic for robots in MuJoCo; HalfCheetah in minutes."""

from __future__ import annotations

from asyncrl.agents.sac import SACConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Return the settings: one optimisation step for each environment step."""
    return RunConfig(
        agent=SACConfig(),
        env="HalfCheetah-v5",
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        limiter=RateLimiterConfig(samples_per_insert=256.0, min_size=1000),
        trainer=AsyncTrainerConfig(
            batch_size=256,
            sync_interval_opt_steps=10,
            books=BookkeepingConfig(eval_interval_opt_steps=5000),
        ),
    )
