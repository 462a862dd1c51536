"""Several critics as one network: observations and actions in, values (critics, B) out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from asyncrl.agents.networks import NetworkInput, encoder_layers, n_features
from asyncrl.env import BoxSpec, PackedSpec

__all__ = ["BatchedCritics", "EncodedCritics", "SeparateCritics", "standard_critics"]


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

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values (critics, B) of actions scaled to [-1, 1]."""
        x = torch.cat([obs, action], dim=1).expand(self.n_critics, -1, -1)
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for w, b in hidden:
            x = torch.baddbmm(b, x, w).relu_()
        # With one output, adding up products takes a third of the time of a matrix product.
        value: Tensor = (x * weight.mT).sum(dim=2) + bias.squeeze(2)
        return value


class EncodedCritics(nn.Module):
    """Critics behind one encoder, which all of them share and teach."""

    def __init__(self, encoder: nn.Module, critics: BatchedCritics) -> None:
        super().__init__()
        self.encoder = encoder
        self.critics = critics

    def forward(self, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return the values (critics, B) of actions scaled to [-1, 1]."""
        values: Tensor = self.critics(self.encoder(obs), action)
        return values


class SeparateCritics(nn.Module):
    """Critics of the user's own, computed one after another."""

    def __init__(self, critics: Sequence[nn.Module]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return the values (critics, B) of actions scaled to [-1, 1]."""
        return torch.stack([critic(obs, action).reshape(len(action)) for critic in self.critics])


def standard_critics(
    observation: BoxSpec | PackedSpec, n_actions: int, n_critics: int, hidden: Sequence[int]
) -> nn.Module:
    """Make critics of one shape for any observations; layers that encode those are shared."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation) + n_actions
    critics = BatchedCritics(n_critics, n_inputs, hidden)
    return EncodedCritics(nn.Sequential(*layers), critics) if layers else critics
