"""Acting has two halves: the network computes outputs, the policy chooses from them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.actor.inference_server import check_served
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.parts.choosing import Chooser, ChooserSpec
from asyncrl.agents.parts.inference import ColumnInference
from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import Act, AgentConfig, PolicyContext, forget
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.inference import fastest_inference
from asyncrl.core.types import Array, Columns

OBS = BoxSpec((3,), "float32", np.full(3, -9, "f4"), np.full(3, 9, "f4"))
CHOICE = EnvSpec(OBS, DiscreteSpec(4))
BOX = EnvSpec(OBS, BoxSpec((2,), "float32", np.full(2, -1, "f4"), np.full(2, 3, "f4")))
ENVS, STEPS = 3, 12

CASES: dict[str, tuple[AgentConfig, EnvSpec]] = {
    "dqn": (DQNConfig(hidden=(8,)), CHOICE),
    "noisy": (RainbowConfig(hidden=(8,)), CHOICE),
    "r2d2": (R2D2Config(hidden=(8,), memory_units=4, normalize_obs=True), CHOICE),
    "ppo, std by state, lstm": (PPOConfig(hidden=(8,), memory="lstm", state_std=True), BOX),
    "ppo, choices": (PPOConfig(hidden=(8,), normalize_obs=True), CHOICE),
    "correlated": (
        SACConfig(hidden=(8,), random_env_steps=9, noise_correlation_env_steps=4.0),
        BOX,
    ),
    "td3": (TD3Config(hidden=(8,), random_env_steps=9), BOX),
    "discrete sac": (DiscreteSACConfig(hidden=(8,), random_env_steps=9), CHOICE),
    "iql": (IQLConfig(hidden=(8,)), BOX),
}


def built(case: str) -> Any:
    config, spec = CASES[case]
    return config.build_policy(spec, PolicyContext(seed=5, n_envs=ENVS))


def acts(policy: TorchPolicy) -> Iterator[Act]:
    """Act in training and, now and then, in evaluation, through ends of episodes."""
    random = np.random.default_rng(1)
    for step in range(STEPS):
        policy.train(step % 4 != 3)
        yield policy.act(random.normal(size=(ENVS, 3)).astype(np.float32))
        forget(policy, random.random(ENVS) < 0.2)


def test_values_stored_for_priorities_have_the_scale_of_the_servers_model() -> None:
    config = DQNConfig(hidden=(8,), actor_priorities=True, normalize_reward=True)
    server: Any = config.build_policy(CHOICE, PolicyContext(seed=1, n_envs=ENVS))
    server.model.returns.learn(torch.tensor([-50.0, 50.0]))
    chooser: Any = server.chooser_spec(CHOICE, PolicyContext(seed=1, n_envs=ENVS))
    chooser.inference = server.inference
    stored = chooser.act(np.zeros((ENVS, 3), np.float32)).extras["reward_scale"]
    expected = server.model.returns.scale().float().item()
    assert expected != 1.0
    np.testing.assert_array_equal(stored, np.full(ENVS, expected, np.float32))


@pytest.mark.parametrize("case", CASES)
def test_a_chooser_acts_like_its_policy_without_a_network(case: str) -> None:
    whole, elsewhere = built(case), built(case)
    build = pickle.loads(pickle.dumps(elsewhere.chooser_spec))
    chooser = build(CASES[case][1], PolicyContext(seed=5, n_envs=ENVS))
    expected = {spec.name: (spec.dtype, spec.shape) for spec in elsewhere.inference_inputs}

    def infer(inputs: Columns) -> Columns:
        seen = {name: (str(rows.dtype), rows.shape[1:]) for name, rows in inputs.items()}
        assert seen.items() <= expected.items()
        assert {"noise", *seen} >= set(expected)
        return elsewhere.inference(inputs)

    chooser.inference = infer
    for mine, its in zip(acts(whole), acts(chooser), strict=True):
        np.testing.assert_array_equal(mine.action, its.action)
        np.testing.assert_equal(mine.extras, its.extras)
    assert (whole.record(), whole.env_steps) == (chooser.record(), chooser.env_steps)


class Worst(Chooser):
    def act(self, obs: Array) -> Act:
        return Act(self.inference({"obs": obs})["outputs"].argmin(axis=1))


class Negated(TorchPolicy):
    def act(self, obs: Array) -> Act:
        return super().act(-obs)


def test_own_chooser_acts_with_a_network_and_elsewhere_but_not_for_an_own_policy() -> None:
    network, context = DQNConfig(hidden=(8,)).make_network(CHOICE), PolicyContext(seed=0)
    policy = TorchPolicy(network, ChooserSpec(Worst), CHOICE, context)
    assert check_served(policy, CHOICE) == policy.chooser_spec
    assert check_served(Negated(network, ChooserSpec(Worst), CHOICE, context), CHOICE) is None
    obs = np.random.default_rng(1).normal(size=(ENVS, 3)).astype(np.float32)
    assert (policy.act(obs).action == network(torch.from_numpy(obs)).argmin(dim=1).numpy()).all()


def test_choosers_load_no_torch() -> None:
    specs = [built(case).chooser_spec for case in CASES]
    code = (
        "import pickle, sys, asyncrl.actor.process, asyncrl.transport.zeromq, asyncrl.envs.gym\n"
        "pickle.load(sys.stdin.buffer)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(specs), check=True)


# --- by columns ---------------------------------------------------------------------------------

BYTES = EnvSpec(BoxSpec((5,), "uint8", np.zeros(5, "u1"), np.full(5, 255, "u1")), DiscreteSpec(4))
DOUBLES = EnvSpec(BoxSpec((3,), "float64", np.full(3, -9.0), np.full(3, 9.0)), DiscreteSpec(4))


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (DQNConfig(), CHOICE),
        (DQNConfig(hidden=()), DOUBLES),
        (DQNConfig(actor_priorities=True), CHOICE),
        (TD3Config(hidden=(32, 32, 32)), BOX),
        (SACConfig(), BOX),
        (DiscreteSACConfig(), CHOICE),
    ],
)
def test_rows_are_computed_as_by_the_network_with_each_new_model(
    config: AgentConfig, spec: EnvSpec
) -> None:
    policy: Any = config.build_policy(spec, PolicyContext(seed=5))
    other: Any = config.build_policy(spec, PolicyContext(seed=6))
    fast = fastest_inference(policy, one_thread=True)
    assert isinstance(fast, ColumnInference)
    policy.sync_model(other.model_info())
    for rows in (1, 2, 3, 64, 600, 1):
        obs = np.random.default_rng(1).normal(size=(rows, 3)).astype(spec.observation.dtype)
        (expected,), (found,) = other.inference({"obs": obs}).values(), fast({"obs": obs}).values()
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.flags.c_contiguous


@pytest.mark.parametrize(
    ("config", "spec"),
    [(DQNConfig(normalize_obs=True), CHOICE), (DQNConfig(), BYTES), (RainbowConfig(), CHOICE)],
)
def test_other_networks_are_asked(config: AgentConfig, spec: EnvSpec) -> None:
    policy: Any = config.build_policy(spec, PolicyContext(seed=5))
    assert fastest_inference(policy, one_thread=True) is policy.inference
