"""Prioritized replay in a whole run: first priorities are the actors', later ones the learner's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.replay.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.integration.test_train_async import config, run
from tests.support.fakes import CountingBatch
from tests.support.leftovers import children

pytestmark = pytest.mark.processes


def test_replay_without_room_is_refused_and_leaves_nothing() -> None:
    replay = PrioritizedReplayConfig(capacity=10**12)
    with pytest.raises(ConfigError, match=r"bytes .* are available"):
        build_trainer(RunConfig(replay=replay), agent=DQNConfig(), env=CountingBatch)
    assert not children(), "nothing is left behind"


def test_priorities_come_from_actors_and_from_the_learner() -> None:
    cfg = config(
        launcher="thread",
        replay=PrioritizedReplayConfig(capacity=4000, n_step=2, alpha=1.0),
        limiter=RateLimiterConfig(samples_per_insert=2.0, min_size=200),
        evaluate=EvaluationConfig(where="off"),
    )
    agent = DQNConfig(hidden=(16,), actor_priorities=True)
    result, trainer = run(cfg, agent=agent, make_env=partial(CountingBatch, n_envs=4, length=20))
    assert result.opt_steps == 200
    buffer = trainer.proxy.buffer
    assert isinstance(buffer, PrioritizedReplay)
    batch = buffer.sample(32)
    assert {"weight", "index", "q_taken", "q_best"} <= set(batch)
    priorities = buffer._priorities._sums.take(np.arange(len(buffer)))
    assert len(np.unique(priorities)) > len(buffer) / 2, "not all are new and alike"
