"""A network of the user's own that cannot learn is refused, unless what is behind it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agent import AgentConfig, PolicyContext
from asyncrl.agents.bc import BCConfig
from asyncrl.agents.c51 import C51Config
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.networks import MakeNetwork
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.errors import ConfigError

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
        (C51Config(network=constant(6), n_atoms=2), CHOICES, "network"),
        (SACConfig(actor_network=constant(4)), QUANTITIES, "actor_network"),
        (SACConfig(critic_network=constant(1)), QUANTITIES, "critic_network"),
        (TD3Config(critic_network=constant(1)), QUANTITIES, "critic_network"),
        (DiscreteSACConfig(actor_network=constant(3)), CHOICES, "actor_network"),
        (IQLConfig(value_network=constant(1)), QUANTITIES, "value_network"),
        (BCConfig(actor_network=constant(3)), CHOICES, "actor_network"),
    ],
)
def test_network_that_cannot_learn_is_refused(
    config: AgentConfig, spec: EnvSpec, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^agent\.{name} must return a network that can learn"):
        config.build(spec, PolicyContext(seed=0))


def test_network_that_makes_its_parameters_when_it_is_called_is_taken() -> None:
    agent = DQNConfig(network=lambda _: nn.LazyLinear(3)).build(CHOICES, PolicyContext(seed=0))
    assert agent.model_info().params["weight"].shape == (3, 4)


@pytest.mark.parametrize("kind", [PPOConfig, IMPALAConfig, IQNConfig, R2D2Config])
def test_features_need_not_learn(kind: type[PPOConfig]) -> None:
    assert (
        kind(network=lambda _: nn.Flatten())
        .build(CHOICES, PolicyContext(seed=0))
        .model_info()
        .params
    )
