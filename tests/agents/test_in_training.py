"""All settings at once, in a run with prioritized replay: columns are filled, nothing diverges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from tests.agents.test_rainbow import FAMILY

_NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
_ALL = {**_NORMALIZED, "precision": "bfloat16"}
CASES: dict[str, tuple[str, Any]] = {
    "dqn": (
        "CartPole-v1",
        DQNConfig(hidden=(16,), device="cpu", actor_priorities=True, **_ALL),  # type: ignore[arg-type]
    ),
    "sac": (
        "Pendulum-v1",
        SACConfig(hidden=(16,), device="cpu", random_env_steps=50, **_ALL),  # type: ignore[arg-type]
    ),
    **{
        name: ("CartPole-v1", replace(config, **_NORMALIZED))  # type: ignore[type-var]
        for name, config in FAMILY.items()
        if name in {"rainbow", "noisy-iqn"}
    },
}


def metrics_of_a_run(env_id: str, config: AgentConfig) -> dict[str, float]:
    """Return the agent's metrics at the end of a short run with prioritized replay."""
    recorder = MemoryRecorder()
    result = train_sync(
        config,
        EnvConfig(id=env_id, n_envs=4).build,
        SyncConfig(
            evaluate=EvaluationConfig(where="off"),
            replay=PrioritizedReplayConfig(capacity=2000, n_step=3),
            trainer=TrainerConfig(batch_size=16, warmup_env_steps=300),
        ),
        stop=MaxOptSteps(60),
        recorder=recorder,
    )
    assert result.opt_steps == 60
    last = recorder.records[-1].items()
    return {name: float(value) for name, value in last if name.startswith("agent/")}


@pytest.mark.parametrize(("env_id", "config"), CASES.values(), ids=CASES)
def test_runs_with_everything_on_stay_finite_and_repeat_themselves(
    env_id: str, config: AgentConfig
) -> None:
    metrics = metrics_of_a_run(env_id, config)
    assert {"agent/critic_loss"} <= set(metrics) or {"agent/loss", "agent/grad_norm"} <= set(
        metrics
    )
    assert "agent/q_mean" in metrics
    assert np.isfinite(list(metrics.values())).all()
    assert metrics_of_a_run(env_id, config) == metrics
