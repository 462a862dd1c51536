"""Real runs of seconds, measured; and what each preset would be tried with."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.rate_limiter import build_limiter
from asyncrl.run.presets import preset, preset_lines
from asyncrl.run.run_config import RunConfig
from asyncrl.tools.bench import trial as trial_module
from asyncrl.tools.bench.trial import run_trial


@pytest.mark.processes
def test_trial_reports_rates() -> None:
    trial = run_trial(
        DQNConfig(hidden=(16,)),
        EnvConfig(id="CartPole-v1", n_envs=4).build,
        RunConfig(
            actors=1,
            segment=SegmentConfig(length=8),
            limiter=RateLimiterConfig(samples_per_insert=64.0),
            trainer=AsyncTrainerConfig(batch_size=64),
        ),
        seconds=0.3,
    )
    assert trial.took_s > 0.3
    assert trial.env_steps_per_s > 0
    # 64 samples an insert, in batches of 64: one opt step for each env step
    assert trial.opt_steps_per_s == pytest.approx(trial.env_steps_per_s, rel=0.8)
    assert trial.rate == pytest.approx(trial.env_steps_per_s, rel=0.8)


class Built(Exception):
    """As far as a run is built here."""


@pytest.mark.parametrize("name", preset_lines())
def test_settings_of_every_preset_can_be_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[RunConfig] = []

    def build(config: RunConfig, **_: Any) -> Any:
        tried.append(config)
        raise Built

    monkeypatch.setattr(trial_module, "build_trainer", build)
    start = preset(name)
    with pytest.raises(Built):
        run_trial(start.agent, start.env_config().build, start, seconds=1.0)
    (config,) = tried
    message = start.envs_per_actor * start.segment.length
    once, batch_size = config.replay.once, config.trainer.batch_size
    limiter = build_limiter(config.limiter, max_insert=message, batch_size=batch_size, once=once)
    limiter.on_insert(10 * (message + batch_size))
    assert not limiter.may_insert(message), "it limits, and has not to wait for long to begin"
