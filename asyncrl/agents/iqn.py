"""IQN: learns the quantile function of returns with one network; acts on the mean of quantiles.

Paper: Dabney et al. (2018), Implicit quantile networks for distributional reinforcement learning,
https://arxiv.org/abs/1806.06923.

With encoder psi, embedding phi of a fraction tau in [0, 1], head f, uniformly sampled fractions
tau_i and tau'_j, target networks Z' and Q', and s', which may lie n steps ahead:

    Z_tau(s, a) = f(psi(s) * phi(tau))_a, the quantile at tau of the return of action a
    phi_j(tau)  = relu(sum over i of cos(pi * i * tau) * w_ij + b_j), i from 0 to `n_cosines` - 1
    Q(s, a)     = mean over k of Z_tau_k(s, a), tau_k = (k - 1/2) / K
    a*          = argmax over a of Q'(s', a), or of Q(s', a) where `double` is on
    delta_ij    = r + discount * Z'_tau'_j(s', a*) - Z_tau_i(s, a)
    L           = mean of the sum over i of the mean over j of
                  |tau_i - 1(delta_ij < 0)| * L_kappa(delta_ij) / kappa

with Huber's L_kappa(x) = x^2 / 2 up to kappa, kappa * (|x| - kappa / 2) beyond.

Deviations, on purpose:

* Those of DQN, see `dqn.py`.
* All actions, those of the targets included, are chosen by the mean of quantiles at K evenly spaced
  fractions instead of random ones: that mean has less variance, and evaluations are reproducible.
* The preset acts with K = 8 (paper: 32), to act faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    allowed_only,
    encoder_layers,
    hidden_layers,
    n_actions,
    n_features,
    of_actions,
    pick_device,
    q_head,
)
from asyncrl.agents.parts.q_learning import QAgent, QConfig
from asyncrl.agents.parts.user_networks import own_encoder
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, Positive, Widths
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class IQNConfig(QConfig):
    """Settings of IQN."""

    hidden: Annotated[Widths, COMMON] = (64, 64)
    """Units of each hidden layer. The first layer is part of psi, unless convolutions or `network`
    encode observations. The others are between the product and the quantiles."""

    network: MakeNetwork | None = None
    """Factory of a custom encoder psi: from a batch of float observations (images within [0, 1]),
    or a dict of them by field name, to features (batch, any number). Must be importable or
    cloudpickle-able. None uses the default one."""

    n_quantiles: Count = 8
    """N: quantile fractions sampled per row for the action taken."""

    n_target_quantiles: Count = 8
    """N': quantile fractions sampled per row for the target."""

    n_acting_quantiles: Count = 32
    """K: evenly spaced quantile fractions; the mean of their quantiles is the value of an
    action."""

    n_cosines: Count = 64
    """Number of cosines in the embedding of a fraction."""

    kappa: Positive = 1.0
    """Threshold of the Huber loss, in units of returns: quadratic below it, linear above."""

    double: bool = False
    """Double Q-learning: the online network chooses the next action, the target network provides
    its quantiles."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> IQNAgent:
        """Return the learner's agent."""
        return IQNAgent(self, spec, context, pick_device(self.device))

    def make_network(self, spec: EnvSpec) -> IQNNetwork:
        """Return the network, from observations to values (B, actions)."""
        n = n_actions(spec, "IQN")
        encoder, width, hidden = self._make_encoder(spec)
        head = q_head(width, hidden, n, dueling=self.dueling, sigma=self.sigma)
        return IQNNetwork(encoder, head, width, self.n_cosines, self.n_acting_quantiles)

    def _make_encoder(self, spec: EnvSpec) -> tuple[nn.Module, int, tuple[int, ...]]:
        """Return psi, its number of features, and the hidden layers that remain for f."""
        if self.network is not None:
            return *own_encoder(self.network, spec), self.hidden
        layers = encoder_layers(spec.observation)
        encoder = nn.Sequential(*layers)
        learns = any(True for _ in encoder.parameters())
        width = n_features(layers, spec.observation)
        if learns or not self.hidden:
            return encoder, width, self.hidden
        first, *others = self.hidden
        layers.append(hidden_layers(width, (first,), self.sigma))
        return nn.Sequential(*layers), first, tuple(others)


class IQNNetwork(nn.Module):
    """Quantiles of returns, which only the update uses, and their means."""

    steps: Tensor
    even: Tensor

    def __init__(
        self, encoder: nn.Module, head: nn.Module, n_features: int, n_cosines: int, n_even: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = nn.Linear(n_cosines, n_features)
        self.head = head
        self.register_buffer("steps", math.pi * torch.arange(n_cosines), persistent=False)
        # Midpoints of K equal parts of [0, 1].
        even = (torch.arange(n_even) + 0.5)[:, None] / n_even
        self.register_buffer("even", even, persistent=False)

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return values (B, actions)."""
        return allowed_only(self.mean(self.encoder(obs)), obs)

    def mean(self, features: Tensor) -> Tensor:
        """Return values (B, actions) of encoded observations (B, features)."""
        return self.quantiles(features, self.even).mean(dim=0)

    def quantiles(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return Z (N, B, actions) of encoded observations, at fractions (N, B) or (N, 1)."""
        embedded = self.embedding((fractions[..., None] * self.steps).cos()).relu()
        quantiles: Tensor = self.head(features * embedded)
        return quantiles


class IQNAgent(QAgent):
    """The part that learns, and acts as well. Priorities are the rows' losses."""

    config: IQNConfig
    net: IQNNetwork
    target: IQNNetwork

    def __init__(
        self, config: IQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.parts["draws"] = self.draws

    def draw(self, rows: int) -> dict[str, Tensor]:
        n = self.config.n_quantiles + self.config.n_target_quantiles
        fractions = torch.rand((n, rows), generator=self.draws, device=self.device)
        return {"fractions": fractions, **super().draw(rows)}

    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        fractions, target_fractions = data["fractions"].tensor_split([self.config.n_quantiles])
        target = self.targets(next_obs, reward, data["discount"], target_fractions)
        features = self.updater.forward_in_chunks(self.net.encoder, obs)
        taken = of_actions(self.quantiles(self.net, features, fractions), data["action"])
        loss = quantile_huber(taken, target, fractions, self.config.kappa)
        metrics = {"q_mean": taken.detach().mean(), "priority": loss.detach()}
        return (data["weight"] * loss if "weight" in data else loss).mean(), metrics

    @torch.no_grad()
    def targets(
        self, next_obs: NetworkInput, reward: Tensor, discount: Tensor, fractions: Tensor
    ) -> Tensor:
        """Return r + discount * Z'_tau'_j(s', a*), (N', B)."""
        features = self.updater.forward_in_chunks(self.target.encoder, next_obs)
        quantiles = self.quantiles(self.target, features, fractions)
        if self.config.double:
            q = self.updater(self.net, next_obs)
        else:
            q = allowed_only(self.updater(self.target.mean, features), next_obs)
        return reward + discount * of_actions(quantiles, q.argmax(dim=1))

    def quantiles(self, network: IQNNetwork, features: Tensor, fractions: Tensor) -> Tensor:
        """Return Z (N, B, actions) of encoded observations, at fractions (N, B)."""

        def answer(features: Tensor, fractions: Tensor) -> Tensor:
            return network.quantiles(features, fractions.T)

        return self.updater(answer, features, fractions.T, dim=1)


def quantile_huber(quantiles: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """Return the loss (B,) of quantiles (N, B) at fractions (N, B), given targets (N', B).

    Equations 2 and 3 of the paper.
    """
    z, y = torch.broadcast_tensors(quantiles[:, None], target[None])
    # |x| - kappa / 2 beyond kappa: already divided by kappa.
    huber = functional.smooth_l1_loss(z, y, reduction="none", beta=kappa)
    weight = (fractions[:, None] - (y < z).to(z.dtype)).abs()
    loss: Tensor = (weight * huber).mean(dim=1).sum(dim=0)
    return loss
