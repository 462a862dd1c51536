"""Asynchronous and synchronous trainers learn the same from the same batch, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.actor.step_processor import make_one_step, schema_of
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.replay_buffer import AcceptsPriorities, ReplayBuffer
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.synchronous import Trainer, TrainerConfig
from tests.learner.test_async_trainer import Stage
from tests.support.helpers import copied

SEED = 3
N_BATCHES = 4
ONCE: dict[str, Any] = {
    "opt_interval_env_steps": 64,
    "segment": SegmentConfig(length=64),
}

CASES = [
    pytest.param(DQNConfig(device="cpu"), UniformReplayConfig(n_step=3), "CartPole-v1", id="dqn"),
    pytest.param(
        DQNConfig(device="cpu"), PrioritizedReplayConfig(), "CartPole-v1", id="priorities"
    ),
    pytest.param(
        SACConfig(hidden=(32,), device="cpu"), UniformReplayConfig(), "Pendulum-v1", id="sac"
    ),
    pytest.param(PPOConfig(device="cpu"), TrajectoryQueueConfig(), "CartPole-v1", id="ppo"),
    pytest.param(IMPALAConfig(device="cpu"), TrajectoryQueueConfig(), "CartPole-v1", id="impala"),
]


class Recording:
    """Keeps what a replay hands out."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.batches: list[Columns] = []

    def sample(self, batch_size: int) -> Columns:
        batch: Columns = self.buffer.sample(batch_size)
        self.batches.append(copied(batch))
        return batch

    def __len__(self) -> int:
        return len(self.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.buffer, name)


class RecordingPriorities(Recording):
    """Has the method itself: Python 3.12 does not count what `__getattr__` finds for a protocol."""

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        self.buffer.update_priorities(index, td_error)


class Replaying:
    """Hands out what was recorded, in the same order."""

    capacity = 1_000_000

    def __init__(self, batches: list[Columns]) -> None:
        self._batches = [copied(batch) for batch in batches]
        self.received: list[Array] = []

    def push(self, columns: Columns, rows: IntArray) -> int:
        raise AssertionError("no actor is needed here")

    def sample(self, batch_size: int) -> Columns:
        return self._batches.pop(0)

    def __len__(self) -> int:
        return 1_000


class ReplayingPriorities(Replaying):
    """Also keeps the priorities that it receives."""

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        self.received.append(np.array(td_error))


def build(agent_config: Any, replay: Any, env_id: str, buffer: ReplayBuffer | None) -> Trainer:
    """Return a synchronous trainer; without a buffer, one that records."""
    env = EnvConfig(id=env_id, n_envs=4).build()
    extras = agent_config.extra_columns(env.spec)
    config = TrainerConfig(batch_size=32, warmup_env_steps=64, **(ONCE if replay.once else {}))
    segment = config.segment or SegmentConfig(length=1)
    processor = make_one_step(segment, extras)
    schema = schema_of(processor, env.spec, extras, segment, lookahead=replay.lookahead)
    made = replay.build(schema, SEED)
    recording: Any = (
        RecordingPriorities(made) if isinstance(made, AcceptsPriorities) else Recording(made)
    )
    return Trainer(
        agent_config.build(env.spec, PolicyContext(seed=SEED, n_envs=4)),
        env,
        buffer or recording,
        config,
        schema=schema,
        processor=processor,
        seed=SEED,
        stop=MaxOptSteps(N_BATCHES),
    )


@pytest.mark.parametrize(("agent_config", "replay", "env_id"), CASES)
def test_same_batches_make_the_same_model(agent_config: Any, replay: Any, env_id: str) -> None:
    recorder = build(agent_config, replay, env_id, None)
    recorder.train()
    batches: list[Columns] = recorder.buffer.batches  # type: ignore[attr-defined]
    assert len(batches) == N_BATCHES

    replaying: Any = (ReplayingPriorities if "index" in batches[0] else Replaying)(batches)
    sync = build(agent_config, replay, env_id, replaying)
    before = {name: value.copy() for name, value in sync.agent.state().items()}
    for _ in batches:
        sync.learn(replaying.sample(32))

    stage = Stage(agent=build(agent_config, replay, env_id, replaying).agent)  # type: ignore[arg-type]
    proxy: Any = stage.proxy
    proxy.buffer = other_replay = ReplayingPriorities([])
    for batch in batches:
        stage.trainer.learn(copied(batch))

    learned, other = sync.agent.state(), stage.trainer.agent.state()
    assert sorted(learned) == sorted(other)
    for name, value in learned.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert any(not np.array_equal(value, before[name]) for name, value in learned.items())
    assert len(replaying.received) == (N_BATCHES if "index" in batches[0] else 0)
    for here, there in zip(replaying.received, other_replay.received, strict=True):
        np.testing.assert_array_equal(here, there)
