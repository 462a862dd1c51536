"""C51 for small problems with discrete actions: distributions of returns; CartPole in seconds."""

from __future__ import annotations

from asyncrl.agents.c51 import C51Config
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Return the settings; for other environments, v_min and v_max are those of their returns."""
    return RunConfig(
        agent=C51Config(v_min=0.0, v_max=100.0, double=True),
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
