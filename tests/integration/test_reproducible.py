"""The synchronous trainer gives the same bits twice, with the real agents and environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.core.types import Params
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer

CLOCK_METRICS = (
    *("wall_s", "train_s", "fps", "_per_s", "_per_sec"),
    *("share/", "ms/", "system/", "learner/"),
)

CASES = [
    pytest.param(DQNConfig(device="cpu"), "CartPole-v1", id="dqn"),
    pytest.param(SACConfig(hidden=(64, 64), device="cpu"), "Pendulum-v1", id="sac"),
]


def run(agent: AgentConfig, env_id: str, seed: int) -> tuple[Params, list[dict[str, Any]]]:
    recorder = MemoryRecorder()
    config = RunConfig(
        seed=seed,
        replay=UniformReplayConfig(capacity=5000, n_step=3),
        trainer=AsyncTrainerConfig(batch_size=32),
        limiter=RateLimiterConfig(min_size=200),
        evaluate=EvaluationConfig(interval_opt_steps=75, play=EpisodeEvaluatorConfig(episodes=2)),
        record=RecordConfig(interval_s=0, interval_opt_steps=50),
    )
    make_env = EnvConfig(id=env_id, n_envs=2).build
    trainer = build_trainer(
        replace(config, mode="sync"),
        agent=agent,
        env=make_env,
        recorder=recorder,
        stop=MaxOptSteps(200),
    )
    trainer.train()
    records = [
        {k: v for k, v in record.items() if not any(c in k for c in CLOCK_METRICS)}
        for record in recorder.records
    ]
    return trainer.agent.state(), records


@pytest.mark.parametrize(("agent", "env_id"), CASES)
def test_same_seed_gives_the_same_bits_and_another_one_others(
    agent: AgentConfig, env_id: str
) -> None:
    (state, records), (again, records_again), (other, other_records) = (
        run(agent, env_id, seed) for seed in (3, 3, 4)
    )
    assert records == records_again != other_records
    assert state.keys() == again.keys()
    for name, value in state.items():
        assert value.tobytes() == again[name].tobytes(), name
    weights = [name for name in state if name.startswith("model/") and name.endswith("weight")]
    assert weights
    for name in weights:
        assert not np.array_equal(state[name], other[name]), name
