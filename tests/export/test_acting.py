"""Policies that act and explore without torch do exactly what those with torch do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.crossq import CrossQConfig
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import PolicyContext, forget
from asyncrl.core.env import DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.core.types import ModelVersion
from asyncrl.export.acting import Acting
from asyncrl.export.tracing import plan_acting
from tests.export.test_export import BOUNDED, IMAGE, MANY, PARTS, VECTOR, observations

CHOICES = EnvSpec(VECTOR, DiscreteSpec(4))
MOTORS = EnvSpec(VECTOR, BOUNDED)
CONTEXT = PolicyContext(seed=5, actor_id=1, n_actors=4)

CASES: dict[str, tuple[Any, EnvSpec]] = {
    "dqn": (DQNConfig(actor_priorities=True, normalize_reward=True), CHOICES),
    "dqn, dueling, on images": (DQNConfig(dueling=True), EnvSpec(IMAGE, DiscreteSpec(4))),
    "dqn, of fields": (DQNConfig(normalize_obs=True), EnvSpec(PARTS, DiscreteSpec(4))),
    "dqn, many choices": (DQNConfig(), EnvSpec(MANY, DiscreteSpec(4))),
    "iqn": (IQNConfig(), CHOICES),
    "r2d2": (R2D2Config(), CHOICES),
    "discrete sac": (DiscreteSACConfig(random_env_steps=3), CHOICES),
    "sac": (SACConfig(random_env_steps=3), MOTORS),
    "crossq": (CrossQConfig(random_env_steps=3), MOTORS),
    "td3": (TD3Config(random_env_steps=3), MOTORS),
    "ppo": (PPOConfig(), MOTORS),
    "impala, with a memory": (IMPALAConfig(memory="lstm"), CHOICES),
}


@pytest.mark.parametrize("name", CASES)
def test_it_acts_and_explores_alike(name: str) -> None:
    agent, spec = CASES[name]
    plan = from_plain(Acting, json.loads(json.dumps(to_plain(plan_acting(agent, spec)))))
    ours, theirs = plan.build_policy(spec, CONTEXT), agent.build_policy(spec, CONTEXT)
    random = np.random.default_rng(0)
    for version in range(3):  # the newest model counts
        other = agent.build_policy(spec, PolicyContext(seed=version))
        info = other.model_info()
        for policy in (ours, theirs):
            policy.sync_model(info)
        for step in range(8):
            obs = _seen(spec, random)
            for policy in (ours, theirs):
                forget(policy, np.array([step == 5]))
            mine, wanted = ours.act(obs), theirs.act(obs)
            np.testing.assert_allclose(mine.action, wanted.action, 1e-4, 1e-4)
            assert [*mine.extras] == [*wanted.extras]
            for column, rows in wanted.extras.items():
                np.testing.assert_allclose(mine.extras[column], rows, 1e-3, 1e-3)
    assert ours.record() == theirs.record()


def _seen(spec: EnvSpec, random: np.random.Generator) -> Any:
    box = spec.observation
    if isinstance(box, PackedSpec):
        return observations(box, int(random.integers(100)))[:1]
    if np.dtype(box.dtype).kind == "u":
        return random.integers(0, 255, (1, *box.shape)).astype(box.dtype)
    return random.standard_normal((1, *box.shape)).astype(box.dtype)


def test_a_model_of_another_network_is_refused() -> None:
    policy = plan_acting(DQNConfig(), CHOICES).build_policy(CHOICES, CONTEXT)
    info = DQNConfig().build_policy(CHOICES, CONTEXT).model_info()
    policy.sync_model(info)
    name = min(info.params)
    without = {key: value for key, value in info.params.items() if key != name}
    wrong = {"lacks": without, "of shape": {**info.params, name: np.zeros(3)}}
    for words, params in wrong.items():
        with pytest.raises(ConfigError, match=rf"{words}.*") as raised:
            policy.sync_model(ModelInfo(version=ModelVersion(1), params=params))
        assert name in str(raised.value)


def test_a_model_is_used_as_it_was_when_it_arrived() -> None:
    """Its arrays are views of a message, whose memory may be used again."""
    policy: Any = plan_acting(DQNConfig(), CHOICES).build_policy(CHOICES, CONTEXT)
    info = DQNConfig().build_policy(CHOICES, CONTEXT).model_info()
    params = {name: array.copy() for name, array in info.params.items()}
    policy.sync_model(ModelInfo(version=ModelVersion(1), params=params))
    inputs = {"obs": np.ones((1, *VECTOR.shape), np.float32)}
    before = policy.inference(inputs)
    for array in params.values():
        array.fill(0)
    after = policy.inference(inputs)
    assert all(np.array_equal(after[name], rows) for name, rows in before.items())
    assert any(rows.any() for rows in before.values())
