"""Soft actor-critic for small problems with discrete actions; CartPole in seconds."""

from __future__ import annotations

from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig


def preset() -> RunConfig:
    """Return the settings."""
    return RunConfig(
        agent=DiscreteSACConfig(
            target_entropy_share=0.8,
            initial_alpha=0.1,
            actor_learning_rate=5e-4,
            critic_learning_rate=2e-3,
            alpha_learning_rate=1e-3,
            tau=0.05,
        ),
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(n_step=3),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(
            sync_interval_opt_steps=20,
            books=BookkeepingConfig(eval_interval_opt_steps=250),
        ),
    )
