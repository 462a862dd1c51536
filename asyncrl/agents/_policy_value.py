"""A network that tells, of each observation, what to draw an action from and what will come of it.

observations ── torso ──┬── [memory] ──┬── outputs of an action head
              (or two)  │              └── value
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents._heads import exactly
from asyncrl.agents._own_networks import own_encoder
from asyncrl.agents.distributions import ActionHead
from asyncrl.agents.networks import (
    MakeNetwork,
    NetworkInput,
    encoder_layers,
    make_orthogonal,
    n_features,
)
from asyncrl.agents.recurrent import CoreKind, RecurrentCore, each_row
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec

Activation = Literal["tanh", "relu"]

_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
"""So small that at first all actions are about as likely."""


class PolicyValueNet(nn.Module):
    """A torso, or one for the policy and one for the value, and heads; a memory between if asked.

    Rows without leading dimensions beyond (B,) are answered by `forward` and `step`, trajectories
    (B, T, ...) by `unroll`.
    """

    def __init__(
        self, torsos: Sequence[nn.Module], n_inputs: int, head: ActionHead, core: CoreKind | None
    ) -> None:
        """Put heads behind torsos of `n_inputs` features: one torso, or the policy's and the other.

        A core has as many units as the torso has features, and needs a torso that is shared.
        """
        super().__init__()
        self.torsos = nn.ModuleList(torsos)
        self.core = RecurrentCore(core, n_inputs, n_inputs) if core else None
        self.head = head
        self.policy = nn.Linear(n_inputs, head.n_outputs)
        self.value = nn.Linear(n_inputs, 1)
        make_orthogonal(self.policy, _POLICY_GAIN)
        make_orthogonal(self.value, 1.0)
        if self.core is not None:
            make_orthogonal(self.core, 1.0)

    @property
    def memory_size(self) -> int:
        """Numbers that are remembered of each environment."""
        return self.core.memory_size if self.core is not None else 0

    def forward(self, obs: NetworkInput) -> tuple[Tensor, Tensor]:
        """Return outputs (B, n_outputs) and values (B,) of a network without memory."""
        features = self.torsos[0](obs)
        others = features if len(self.torsos) == 1 else self.torsos[1](obs)
        return exactly(self.policy, features), exactly(self.value, others).squeeze(-1)

    def step(self, obs: NetworkInput, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (B, n_outputs), and the memory after these rows."""
        features = self.torsos[0](obs)
        if self.core is not None:
            features, memory = self.core.step(features, memory)
        return self.policy(features), memory

    def unroll(
        self, obs: NetworkInput, memory: Tensor, begins: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (B, T, n_outputs) and values (B, T) of trajectories.

        `begins` (B, T) is where episodes begin, or None if none do.
        """
        features = each_row(self.torsos[0], obs)
        others = features if len(self.torsos) == 1 else each_row(self.torsos[1], obs)
        if self.core is not None:
            features = others = self.core.unroll(features, memory, begins)[0]
        return exactly(self.policy, features), exactly(self.value, others).squeeze(-1)


def make_torso(
    spec: EnvSpec, hidden: Sequence[int], activation: Activation, own: MakeNetwork | None
) -> tuple[nn.Module, int]:
    """Make the default torso or the user's own; return it, and its number of features."""
    if own is not None:
        return own_encoder(own, spec)
    torso = _Torso(spec.observation, hidden, activation)
    make_orthogonal(torso, _HIDDEN_GAIN)
    return torso, torso.n_outputs


class _Torso(nn.Module):
    """Encoders as in `encoder_layers`, and layers with an activation behind each of them."""

    def __init__(
        self, observation: BoxSpec | PackedSpec, hidden: Sequence[int], activation: Activation
    ) -> None:
        super().__init__()
        encoder = encoder_layers(observation)
        sizes = [n_features(encoder, observation), *hidden]
        self.n_outputs = sizes[-1]
        self.encoder = nn.Sequential(*encoder)
        self._layers = tuple(nn.Linear(*pair) for pair in pairwise(sizes))
        self.hidden = nn.ModuleList(self._layers)  # never called, which would take longer
        self._activate = torch.tanh_ if activation == "tanh" else torch.relu_

    def forward(self, obs: NetworkInput) -> Tensor:
        x: Tensor = self.encoder(obs)
        for layer in self._layers:
            x = self._activate(functional.linear(x, layer.weight, layer.bias))
        return x
