"""Observations of several fields, from the environment through replay to the network, unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep, Step
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import Act, AgentConfig
from asyncrl.core.env import BatchEnv, EnvSpec, PackedSpec
from asyncrl.core.messages import Experience
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.core.types import ModelVersion
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.gym import make_batch
from asyncrl.envs.spaces import Parts
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig
from asyncrl.transport.wire import WireFormat
from tests.envs.strategies import array_spaces, nested_spaces
from tests.integration.test_train_async import config, run
from tests.support.sample_messages import PEER

pytestmark = pytest.mark.processes

DISCRETE = Discrete(3)
CONTINUOUS = Box(-1, 1, (2,), np.float32)


class NumberedEnv(gym.Env[Any, Any]):
    """Numbers its observations one after another, and rewards with the number of the last."""

    def __init__(self, length: int) -> None:
        self.length, self.steps, self.number = length, 0, 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs = self.observed()
        return obs, float(self.number), self.steps == self.length, False, {}

    def observed(self) -> Any:
        self.number += 1
        return self.numbered(self.number)

    def numbered(self, n: int) -> Any:
        raise NotImplementedError("a subclass says where an observation has its number")


class FieldsEnv(NumberedEnv):
    """Puts the number of an observation into each of its fields."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        super().__init__(length=7)
        self.action_space = action_space
        self.observation_space = Dict(
            {
                "camera": Box(0, 255, (3, 36, 36), np.uint8),
                "pose": Tuple((Box(-np.inf, np.inf, (2,), np.float64), Discrete(5, start=1))),
                "buttons": MultiBinary(3),
            }
        )

    def numbered(self, n: int) -> Any:
        return {
            "camera": np.full((3, 36, 36), n % 256, np.uint8),
            "pose": (np.array([n, -n], np.float64), n % 5 + 1),
            "buttons": np.array([n & 1, n >> 1 & 1, n >> 2 & 1], np.int8),
        }


def make_vector(action_space: gym.Space[Any], mode: AutoresetMode) -> Callable[[], BatchEnv]:
    makers = [lambda: FieldsEnv(action_space)] * 2
    return make_batch(lambda: SyncVectorEnv(makers, autoreset_mode=mode), 1)


class TellingNetwork(nn.Module):
    """A custom network, which fails unless all fields have the same number."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        assert list(obs) == ["buttons", "camera", "pose/0", "pose/1"]
        n = obs["pose/0"][:, 0]
        if n.any():  # a network is tried with zeros first
            assert torch.equal(obs["pose/0"][:, 1], -n)
            assert torch.equal(obs["pose/1"], n % 5 + 1)
            camera = (n % 256 / 255)[:, None, None, None].expand(-1, 3, 36, 36)
            torch.testing.assert_close(obs["camera"], camera)
            assert torch.equal(obs["buttons"][:, 2], n // 4 % 2)
        answer: Tensor = self.head(obs["pose/0"] / 1000)
        return answer


@pytest.mark.parametrize(
    ("agent", "make_env"),
    [
        pytest.param(
            DQNConfig(network=TellingNetwork, device="cpu"),
            make_vector(DISCRETE, AutoresetMode.NEXT_STEP),
            id="dqn, own network",
        ),
        pytest.param(
            SACConfig(hidden=(16,), random_env_steps=20, device="cpu"),
            make_vector(CONTINUOUS, AutoresetMode.SAME_STEP),
            id="sac",
        ),
    ],
)
def test_actors_and_learner_train_on_several_fields(
    agent: AgentConfig, make_env: Callable[[], BatchEnv]
) -> None:
    cfg = config(evaluate=EvaluationConfig(interval_opt_steps=20))
    stop = MaxOptSteps(40) | MaxSeconds(60)
    result, trainer = run(cfg, agent=agent, make_env=make_env, stop=stop)
    assert result.opt_steps == 40
    assert result.ledger["lost"] == result.ledger["dropped"] == 0
    assert result.best_score is not None
    assert all(np.isfinite(value).all() for value in trainer.agent.model_info().params.values())


class SampledEnv(NumberedEnv):
    """Emits random members of its space, and keeps them."""

    def __init__(self, space: gym.Space[Any], length: int) -> None:
        super().__init__(length)
        self.observation_space = space
        self.action_space = DISCRETE
        self.emitted: list[Any] = []

    def numbered(self, n: int) -> Any:
        self.emitted.append(self.observation_space.sample())
        return copy.deepcopy(self.emitted[-1])


def sent_and_stored(env: BatchEnv, n_steps: int) -> UniformReplay:
    """Step an environment, and send what it does to a replay as an actor would."""
    processor, config = OneStep(), SegmentConfig(length=5)
    schema = make_schema(processor.columns(env.spec, ()), length=5, lookahead=1)
    wire = WireFormat(schema=schema, run_id="a run")
    outbox = Outbox(PEER, schema, config, env.n_envs)
    obs, version = env.reset(0), ModelVersion(0)
    action = np.zeros(env.n_envs, np.int64)
    for _ in range(n_steps):
        outcome = env.step(action)
        for rows in processor.process(Step(obs, Act(action), outcome, version)):
            outbox.push(rows)
        obs = outcome.obs
    for rows in processor.finish(obs):
        outbox.push(rows)
    outbox.finish()
    buffer = UniformReplayConfig(capacity=500).build(schema, seed=0)
    while (message := outbox.take(version, n_steps)) is not None:
        received = wire.decode([bytes(frame) for frame in wire.encode(message)])
        assert isinstance(received, Experience)
        buffer.push(received.columns, received.rows)
    return buffer


@given(st.one_of(array_spaces(), nested_spaces()), st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=60)
def test_whatever_the_space_a_sample_is_what_was_emitted(
    space: gym.Space[Any], length: int, seed: int
) -> None:
    space.seed(seed)
    env = SampledEnv(space, length)
    batch = PlainBatch(lambda: env, 1)
    buffer = sent_and_stored(batch, n_steps=20)
    spec, parts = batch.spec.observation, Parts(space)
    sample = buffer.sample(40)
    numbers = sample["reward"].astype(int)
    for column, at in (("obs", numbers - 2), ("next_obs", numbers - 1)):
        packed = isinstance(spec, PackedSpec)
        stored = [*spec.unpack(sample[column]).values()] if packed else [sample[column]]
        for field, right in zip(stored, parts([env.emitted[i] for i in at]), strict=True):
            np.testing.assert_array_equal(field, np.array(right).astype(field.dtype))
