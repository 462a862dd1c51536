"""Prioritized replay in a whole run: first priorities are the actors', later ones the learner's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import SegmentConfig
from asyncrl.learner.config import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.replay.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.support.fakes import CountingBatch
from tests.support.leftovers import children

pytestmark = pytest.mark.processes


def test_replay_without_room_is_refused_and_leaves_nothing() -> None:
    replay = PrioritizedReplayConfig(capacity=10**12)
    with pytest.raises(ConfigError, match=r"bytes .* are available"):
        build_trainer(RunConfig(replay=replay), agent=DQNConfig(), env=CountingBatch)
    assert not children(), "nothing is left behind"


def test_priorities_come_from_actors_and_from_the_learner() -> None:
    config = RunConfig(
        actors=1,
        launcher="thread",
        segment=SegmentConfig(length=8),
        replay=PrioritizedReplayConfig(capacity=4000, n_step=2, alpha=1.0),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=200),
        trainer=AsyncTrainerConfig(batch_size=32),
        evaluate=EvaluationConfig(where="off"),
    )
    trainer = build_trainer(
        config,
        agent=DQNConfig(hidden=(16,), actor_priorities=True),
        env=partial(CountingBatch, n_envs=4, length=20),
        stop=MaxOptSteps(100) | MaxSeconds(60),
    )
    result = trainer.train()
    assert result.opt_steps == 100
    buffer = trainer.proxy.buffer
    assert isinstance(buffer, PrioritizedReplay)
    batch = buffer.sample(32)
    assert {"weight", "index", "q_taken", "q_best"} <= set(batch)
    priorities = buffer._priorities._sums.take(np.arange(len(buffer)))
    assert len(np.unique(priorities)) > len(buffer) / 2, "not all are new and alike"
