"""The synchronous trainer gives the same bits twice, with the real agents and environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.segment import make_schema
from asyncrl.core.types import Params
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.bookkeeper import BookkeepingConfig, EvaluationTimingConfig, RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.synchronous import Trainer, TrainerConfig
from tests.training.test_trainer import CLOCK_METRICS

CASES = [
    pytest.param(DQNConfig(device="cpu"), "CartPole-v1", id="dqn"),
    pytest.param(SACConfig(hidden=(64, 64), device="cpu"), "Pendulum-v1", id="sac"),
]


def run(agent_config: AgentConfig, env_id: str, seed: int) -> tuple[Params, list[dict[str, Any]]]:
    env, evaluation_env = (EnvConfig(id=env_id, n_envs=2).build() for _ in range(2))
    processor, replay = OneStep(), UniformReplayConfig(capacity=5000, n_step=3)
    agent = agent_config.build(env.spec, PolicyContext(seed=seed, n_envs=2))
    schema = make_schema(processor.columns(env.spec, ()), length=1, lookahead=replay.lookahead)
    recorder = MemoryRecorder()
    books = BookkeepingConfig(
        evaluate=EvaluationTimingConfig(interval_opt_steps=150),
        record=RecordConfig(interval_s=0, interval_opt_steps=100),
    )
    Trainer(
        agent,
        env,
        replay.build(schema, seed),
        TrainerConfig(batch_size=32, warmup_env_steps=200),
        schema=schema,
        processor=processor,
        seed=seed,
        evaluator=EpisodeEvaluator(evaluation_env, EpisodeEvaluatorConfig(episodes=2), seed),
        books=books,
        recorder=recorder,
        stop=MaxOptSteps(400),
    ).train()
    records = [
        {k: v for k, v in record.items() if not any(c in k for c in CLOCK_METRICS)}
        for record in recorder.records
    ]
    return agent.state(), records


@pytest.mark.parametrize(("agent", "env_id"), CASES)
def test_same_seed_gives_the_same_bits(agent: AgentConfig, env_id: str) -> None:
    (state, records), (state_again, records_again) = (run(agent, env_id, seed=3) for _ in range(2))
    assert records == records_again
    assert state.keys() == state_again.keys()
    for name, value in state.items():
        assert value.tobytes() == state_again[name].tobytes(), name


@pytest.mark.parametrize(("agent", "env_id"), CASES)
def test_another_seed_gives_others(agent: AgentConfig, env_id: str) -> None:
    (state, records), (other, other_records) = (run(agent, env_id, seed) for seed in (3, 4))
    assert records != other_records
    weights = [name for name in state if name.startswith("model/") and name.endswith("weight")]
    assert weights
    for name in weights:
        assert not np.array_equal(state[name], other[name]), name
