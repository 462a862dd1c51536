"""Several critics as one network: observations and actions in, values (critics, B) out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    encoder_layers,
    n_features,
    of_actions,
    q_network,
)
from asyncrl.agents.parts.user_networks import own_network, own_networks
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError


class BatchedCritics(nn.Module):
    """MLPs of one shape, computed together: a layer's weights are (critics, inputs, outputs)."""

    def __init__(self, n_critics: int, n_inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.n_critics = n_critics
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for wide, narrow in pairwise([n_inputs, *hidden, 1]):
            bound = wide**-0.5  # as in nn.Linear
            self.weights.append(torch.empty(n_critics, wide, narrow).uniform_(-bound, bound))
            self.biases.append(torch.empty(n_critics, 1, narrow).uniform_(-bound, bound))

    def forward(self, obs: Tensor, action: Tensor, count: int | None = None) -> Tensor:
        """Return the first `count` critics' values (critics, B) of actions scaled to [-1, 1]."""
        count = self.n_critics if count is None else count
        x = torch.cat([obs, action], dim=1).expand(count, -1, -1)
        layers = zip(self.weights, self.biases, strict=True)
        *hidden, (weight, bias) = (
            layers if count == self.n_critics else [(w[:count], b[:count]) for w, b in layers]
        )
        for w, b in hidden:
            x = torch.baddbmm(b, x, w).relu_()
        # With one output, summing products takes a third of the time of a matrix product.
        value: Tensor = (x * weight.mT).sum(dim=2) + bias.squeeze(2)
        return value


class EncodedCritics(nn.Module):
    """Critics after a shared encoder, which learns from all of them."""

    def __init__(self, encoder: nn.Module, critics: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.critics = critics

    def forward(self, obs: NetworkInput, action: Tensor, count: int | None = None) -> Tensor:
        """Return the first `count` critics' values (critics, B) of actions scaled to [-1, 1]."""
        values: Tensor = self.critics(self.encoder(obs), action, count)
        return values


class SeparateCritics(nn.Module):
    """Custom critics, computed one after another."""

    def __init__(self, critics: Sequence[nn.Module]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, obs: NetworkInput, action: Tensor, count: int | None = None) -> Tensor:
        """Return the first `count` critics' values (critics, B) of actions scaled to [-1, 1]."""
        critics = self.critics if count is None else list(self.critics)[:count]
        return torch.stack([critic(obs, action).reshape(len(action)) for critic in critics])


def standard_critics(
    observation: BoxSpec | PackedSpec, n_actions: int, n_critics: int, hidden: Sequence[int]
) -> nn.Module:
    """Return critics of one shape for any observation space; they share the encoder."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation) + n_actions
    critics = BatchedCritics(n_critics, n_inputs, hidden)
    return EncodedCritics(nn.Sequential(*layers), critics) if layers else critics


def make_critics(
    spec: EnvSpec, hidden: Sequence[int], n_critics: int, own: MakeNetwork | None
) -> nn.Module:
    """Return default critics or custom ones, whose output is checked."""
    n_actions = math.prod(spec.action.shape)
    if own is None:
        return standard_critics(spec.observation, n_actions, n_critics, hidden)
    action = torch.zeros(2, n_actions)
    expected = [(2, 1), (2,)]
    return SeparateCritics(own_networks("critic_network", own, spec, n_critics, expected, action))


class ChoiceValues(nn.Module):
    """Networks that output the values of all discrete actions."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return the values (networks, B) of discrete actions (B,)."""
        return of_actions(self.of_all(obs), action)

    def of_all(self, obs: NetworkInput) -> Tensor:
        """Return the values (networks, B, choices) of all discrete actions."""
        return torch.stack([network(obs) for network in self.networks])


def make_action_values(
    spec: EnvSpec, hidden: tuple[int, ...], n_critics: int, own: MakeNetwork | None, who: str
) -> nn.Module:
    """Return default or custom critics: (observations, actions (B, ...)) -> (critics, B).

    Actions are discrete, or continuous in units in which their bounds are -1 and 1.
    """
    action = spec.action
    if not isinstance(action, DiscreteSpec):
        if action.categorical:
            raise ConfigError(
                f"{who} supports one discrete action or continuous actions, but these are several "
                f"discrete ones at once, of shape {action.shape}; use BC, or PPO online"
            )
        return make_critics(spec, hidden, n_critics, own)
    if own is None:
        makes = range(n_critics)
        return ChoiceValues([q_network(spec.observation, hidden, action.n) for _ in makes])
    return ChoiceValues(own_networks("critic_network", own, spec, n_critics, [(2, action.n)]))


def make_state_value(spec: EnvSpec, hidden: tuple[int, ...], own: MakeNetwork | None) -> nn.Module:
    """Return the default or a custom network for state values: (B, ...) -> (B, 1)."""
    if own is None:
        return q_network(spec.observation, hidden, 1)
    return own_network("value_network", own, spec, [(2, 1)])
