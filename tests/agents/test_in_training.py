"""All settings at once, in a run with prioritized replay: columns are filled, nothing diverges."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync

ALL = {"normalize_obs": True, "normalize_reward": True, "precision": "bfloat16"}
CASES = {
    "CartPole-v1": DQNConfig(hidden=(16,), device="cpu", actor_priorities=True, **ALL),
    "Pendulum-v1": SACConfig(hidden=(16,), device="cpu", random_env_steps=50, **ALL),
}


@pytest.mark.parametrize(("env_id", "agent"), CASES.items(), ids=CASES)
def test_a_run_with_everything_on(env_id: str, agent: DQNConfig | SACConfig) -> None:
    recorder = MemoryRecorder()
    result = train_sync(
        agent,
        partial(EnvConfig(id=env_id, n_envs=4).build),
        SyncConfig(
            evaluate=EvaluationConfig(where="off"),
            replay=PrioritizedReplayConfig(capacity=2000),
            trainer=TrainerConfig(batch_size=16, warmup_env_steps=300),
        ),
        stop=MaxOptSteps(60),
        recorder=recorder,
    )
    assert result.opt_steps == 60
    last = recorder.records[-1]
    told = [value for name, value in last.items() if name.startswith("agent/")]
    assert told
    assert np.isfinite(np.array(told, float)).all()
