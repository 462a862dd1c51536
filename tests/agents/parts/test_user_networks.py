"""Custom networks: those that cannot learn are refused, the others act correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.bc import BCConfig
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts.networks import MakeNetwork
from asyncrl.agents.parts.user_networks import own_network
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.tools.doctor.agent import examine_agent

_FREE, _ONES = np.full(4, np.inf, np.float32), np.ones(2, np.float32)
OBSERVATION = BoxSpec((4,), "float32", -_FREE, _FREE)
CHOICES = EnvSpec(OBSERVATION, DiscreteSpec(3))
QUANTITIES = EnvSpec(OBSERVATION, BoxSpec((2,), "float32", -_ONES, _ONES))


class Constant(nn.Module):
    """Answers always the same, and has nothing to learn it with."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs = n_outputs

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        return torch.zeros(len(obs), self.n_outputs)


def constant(n_outputs: int) -> MakeNetwork:
    return lambda _: Constant(n_outputs)


@pytest.mark.parametrize(
    ("config", "spec", "name"),
    [
        (DQNConfig(network=constant(3)), CHOICES, "network"),
        (DQNConfig(network=lambda _: nn.Linear(4, 3).requires_grad_(False)), CHOICES, "network"),
        (SACConfig(actor_network=constant(4)), QUANTITIES, "actor_network"),
        (SACConfig(critic_network=constant(1)), QUANTITIES, "critic_network"),
        (IQLConfig(value_network=constant(1)), QUANTITIES, "value_network"),
        (BCConfig(actor_network=constant(3)), CHOICES, "actor_network"),
    ],
)
def test_network_that_cannot_learn_is_refused(
    config: AgentConfig, spec: EnvSpec, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.{name} must return a network that can learn"):
        config.build(spec, PolicyContext(seed=0))


class Doubles(nn.Module):
    """Computes in double precision, in its first layer or only from the second one on."""

    def __init__(self, n_inputs: int, n_outputs: int, *, from_layer: int) -> None:
        super().__init__()
        dtypes = [torch.float64 if i >= from_layer else torch.float32 for i in range(2)]
        self.first = nn.Linear(n_inputs, 8, dtype=dtypes[0])
        self.last = nn.Linear(8, n_outputs, dtype=dtypes[1])

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        x = obs if action is None else torch.cat([obs, action], dim=1)
        x = self.first(x.to(self.first.weight.dtype))
        answer: Tensor = self.last(x.to(self.last.weight.dtype))
        return answer.float()


def doubles(n_outputs: int, n_inputs: int = 4, *, from_layer: int = 1) -> MakeNetwork:
    return lambda _: Doubles(n_inputs, n_outputs, from_layer=from_layer)


@pytest.mark.parametrize(
    ("config", "spec", "name"),
    [
        (DQNConfig(network=doubles(3)), CHOICES, "network"),
        (DiscreteSACConfig(critic_network=doubles(3)), CHOICES, "critic_network"),
        (SACConfig(critic_network=doubles(1, 6)), QUANTITIES, "critic_network"),
        (PPOConfig(network=doubles(5)), CHOICES, "network"),
    ],
)
def test_network_of_several_dtypes_is_refused(
    config: AgentConfig, spec: EnvSpec, name: str
) -> None:
    refused = (
        rf"^agent\.{name} must return a network.* this Doubles has weights of float32 and float64"
    )
    with pytest.raises(ConfigError, match=refused):
        config.build(spec, PolicyContext(seed=0))


@pytest.mark.parametrize("kind", [PPOConfig, IQNConfig, R2D2Config])
def test_network_of_another_dtype_than_layers_behind_it_is_refused(kind: Any) -> None:
    config = kind(network=doubles(5, from_layer=0))
    with pytest.raises(ConfigError, match=r"weights of float64, and .* have float32"):
        config.build(CHOICES, PolicyContext(seed=0))


def test_a_network_in_place_of_the_function_that_makes_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^agent\.network must be a function .* got a Linear,"):
        own_network("network", nn.Linear(4, 3), CHOICES, [(2, 3)])


def test_an_error_in_a_function_that_makes_networks_names_the_setting() -> None:
    with pytest.raises(TypeError) as caught:
        own_network("critic_network", lambda: nn.Linear(4, 3), CHOICES, [(2, 3)])  # type: ignore[arg-type, misc]
    assert caught.value.__notes__ == ["asyncrl: in agent.critic_network, called with the EnvSpec"]


def test_a_trial_pass_changes_no_counters_and_no_random_state() -> None:
    made: list[nn.Module] = []

    def make(_: EnvSpec) -> nn.Module:
        made.append(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)))
        return made[0]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make(CHOICES)
        after_making = torch.get_rng_state()
        torch.manual_seed(0)
        made.clear()
        own_network("network", make, CHOICES, [(2, 3)])
        assert torch.equal(torch.get_rng_state(), after_making)
    assert made[0].training
    assert made[0].get_buffer("0.num_batches_tracked") == 0
    assert torch.equal(made[0].get_buffer("0.running_var"), torch.ones(4))


def dropping(_: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))


class DroppingCritic(nn.Module):
    """Values an observation and an action, with dropout as DroQ has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.layers(torch.cat([obs, action], 1))
        return value


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (DQNConfig(network=dropping, device="cpu"), CHOICES),
        (SACConfig(critic_network=lambda _: DroppingCritic(), device="cpu"), QUANTITIES),
        (PPOConfig(network=dropping, device="cpu", epochs=2, minibatches=2), CHOICES),
    ],
    ids=["dqn", "droq", "ppo"],
)
def test_dropout_is_repeated_and_resumes_from_a_state(config: AgentConfig, spec: EnvSpec) -> None:
    findings = {found.check: found for found in examine_agent(config, spec)}
    assert findings["resume"].level == "ok", findings["resume"].seen
