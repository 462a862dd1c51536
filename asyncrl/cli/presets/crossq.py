"""CrossQ for small problems with continuous actions, such as Pendulum."""

from __future__ import annotations

from asyncrl.agents.crossq import CrossQConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.run_config import RunConfig
from asyncrl.segment import SegmentConfig
from asyncrl.transports.zeromq import ZmqTransportConfig


def preset() -> RunConfig:
    """Return the settings: one optimisation step for each environment step.

    At that rate rows that wait are soon out of date: messages are short, and none wait in line.
    """
    return RunConfig(
        agent=CrossQConfig(hidden=(64, 64), critic_hidden=(64, 64)),
        env="Pendulum-v1",
        envs_per_actor=4,
        segment=SegmentConfig(length=4),
        transport=ZmqTransportConfig(window=1),
        limiter=RateLimiterConfig(samples_per_insert=128.0, min_size=1000),
        trainer=AsyncTrainerConfig(
            sync_interval_opt_steps=10, books=BookkeepingConfig(eval_interval_opt_steps=250)
        ),
    )
