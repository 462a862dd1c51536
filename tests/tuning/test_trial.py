"""A real run of two seconds, measured."""

from __future__ import annotations

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig
from asyncrl.async_trainer import AsyncTrainerConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.segment import SegmentConfig
from asyncrl.tuning.trial import run_trial


@pytest.mark.processes
@pytest.mark.parametrize("limited", [True, False])
def test_trial_tells_rates_and_what_steps_cost(limited: bool) -> None:
    trial = run_trial(
        DQNConfig(hidden=(16,)),
        EnvConfig(id="CartPole-v1", n_envs=4).build,
        AsyncConfig(
            actors=1,
            segment=SegmentConfig(length=8),
            limiter=RateLimiterConfig(samples_per_insert=64.0),
            trainer=AsyncTrainerConfig(batch_size=64),
        ),
        seconds=0.3,
        limited=limited,
    )
    assert trial.took_s > 0.3
    assert trial.opt_steps_per_s > 0
    assert trial.env_steps_per_s > 0
    for cost_s in (trial.actor.policy_s, trial.actor.env_s, trial.actor.send_s):
        assert 0 < cost_s < 0.1
    assert 0 < trial.learner.wall_s < 1.0
    assert 0 < trial.learner.cpu_s < 1.0
    if limited:  # 64 samples an insert, in batches of 64: one opt step for each env step
        assert trial.opt_steps_per_s == pytest.approx(trial.env_steps_per_s, rel=0.8)
