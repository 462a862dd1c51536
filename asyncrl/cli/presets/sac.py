"""Soft actor-critic for small problems with continuous actions; Pendulum in seconds."""

from __future__ import annotations

from asyncrl.agents.sac import SACConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Return the settings."""
    return RunConfig(
        agent=SACConfig(
            hidden=(64, 64),
            actor_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            alpha_learning_rate=3e-3,
            tau=0.02,
            random_env_steps=500,
        ),
        env="Pendulum-v1",
        segment=SegmentConfig(length=16),
        limiter=RateLimiterConfig(samples_per_insert=32.0, min_size=512),
        trainer=AsyncTrainerConfig(
            sync_interval_opt_steps=20, books=BookkeepingConfig(eval_interval_opt_steps=250)
        ),
    )
