"""C51: learns the distribution of returns as probabilities of fixed atoms; acts on the mean.

Papers:

* Bellemare et al. (2017), A distributional perspective on reinforcement learning,
  https://arxiv.org/abs/1707.06887.
* Hessel et al. (2018), Rainbow, https://arxiv.org/abs/1710.02298: dueling streams of logits.

With atoms z_1 to z_N, evenly spaced from v_min to v_max, network p(s, a) of their probabilities,
target network p', and s', which may lie n steps ahead:

    Q(s, a) = sum over i of z_i * p_i(s, a)
    a*      = argmax over a of Q'(s', a), or of Q(s', a) where `double` is on
    m       = projection of p'_j(s', a*) at r + discount * z_j onto the atoms, see `project`
    L       = mean of - sum over i of m_i * log p_i(s, a)

Deviations, on purpose:

* Those of DQN, see `dqn.py`.
* The atoms span `agent.v_min` to `agent.v_max`, in units of rewards; returns beyond are clipped.
  `clipped_share` is the share of targets that is beyond them by more than half an atom spacing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    allowed_only,
    n_actions,
    pick_device,
    q_network,
)
from asyncrl.agents.parts.q_learning import QAgent, QConfig
from asyncrl.agents.parts.user_networks import own_network
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import Finite, Within
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns

logger = logging.getLogger(__name__)

_LOOKS_AFTER_OPT_STEPS = 500  # a network that has learned nothing gives all atoms some probability


@dataclass(frozen=True, slots=True, kw_only=True)
class C51Config(QConfig):
    """Settings of C51."""

    network: MakeNetwork | None = None
    """Factory of a custom network in place of the default one. It maps a batch of float
    observations (images within [0, 1]), or a dict of them by field name, to logits (batch,
    n_actions * n_atoms) or (batch, n_actions, n_atoms). Must be importable or cloudpickle-able."""

    n_atoms: Annotated[int, Within("[2, inf)")] = 51
    """Number of atoms of the return distribution."""

    v_min: Finite = -10.0
    """Smallest atom. Lower returns count as this value. With `normalize_reward`, both atoms are in
    standard deviations of the return: keep -10 and 10."""

    v_max: Finite = 10.0
    """Largest atom. Higher returns count as this value."""

    double: bool = False
    """Double Q-learning: the online network chooses the next action, the target network provides
    its distribution."""

    wants_priorities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        QConfig.__post_init__(self)
        self.check_shapes(self.network)
        if not self.v_min < self.v_max:
            raise ConfigError(
                f"agent.v_min must be less than agent.v_max, got {self.v_min} and {self.v_max}"
            )

    def build(self, spec: EnvSpec, context: PolicyContext) -> C51Agent:
        """Return the learner's agent."""
        return C51Agent(self, spec, context, pick_device(self.device))

    def make_network(self, spec: EnvSpec) -> C51Network:
        """Return the network, from observations to values (B, actions)."""
        n = n_actions(spec, "C51")
        if self.network is not None:
            expected = [(2, n * self.n_atoms), (2, n, self.n_atoms)]
            body = own_network("network", self.network, spec, expected)
        else:
            body = q_network(
                spec.observation,
                self.hidden,
                n,
                dueling=self.dueling,
                n_values=self.n_atoms,
                sigma=self.sigma,
            )
        return C51Network(body, torch.linspace(self.v_min, self.v_max, self.n_atoms))


class C51Network(nn.Module):
    """Distributions of returns, which only the update uses, and their means."""

    atoms: Tensor

    def __init__(self, body: nn.Module, atoms: Tensor) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("atoms", atoms, persistent=False)

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return values (B, actions)."""
        return allowed_only(self.mean(self.logits(obs)), obs)

    def logits(self, obs: NetworkInput) -> Tensor:
        """Return logits (B, actions, atoms)."""
        logits: Tensor = self.body(obs)
        return logits.reshape(logits.shape[0], -1, len(self.atoms))

    def mean(self, logits: Tensor) -> Tensor:
        """Return the means (...) of distributions (..., atoms)."""
        return logits.softmax(dim=-1) @ self.atoms


class C51Agent(QAgent):
    """The part that learns, and acts as well. Priorities are the rows' losses."""

    config: C51Config
    net: C51Network
    target: C51Network
    warned = False

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step; warn once if returns do not fit the atoms."""
        if self.config.wants_priorities and not self.version and "weight" not in batch:
            logger.warning(
                "%s is made for returns of several steps from prioritized replay, but this replay "
                "has no priorities; set replay to PrioritizedReplayConfig(n_step=3)",
                type(self.config).__name__,
            )
        metrics = super().opt(batch)
        if self.version % _LOOKS_AFTER_OPT_STEPS == 0 and not self.warned:
            self.warned = (share := float(metrics["clipped_share"])) > 0.05
            if self.warned:
                logger.warning(
                    "%.0f %% of what the targets predict is below agent.v_min=%g or above "
                    "agent.v_max=%g and is clipped; set both to the range of discounted returns",
                    100 * share,
                    self.config.v_min,
                    self.config.v_max,
                )
        return metrics

    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        target, clipped = self.targets(next_obs, reward, data["discount"])
        logits = _of(self.updater(self.net.logits, obs), data["action"])
        loss = -(target * logits.log_softmax(dim=1)).sum(dim=1)
        with torch.no_grad():
            metrics = {"q_mean": self.net.mean(logits).mean(), "priority": loss.detach()}
            metrics["clipped_share"] = clipped
        return (data["weight"] * loss if "weight" in data else loss).mean(), metrics

    @torch.no_grad()
    def targets(
        self, next_obs: NetworkInput, reward: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return m (B, atoms), the target distribution on the atoms, and the share beyond them."""
        logits = self.updater(self.target.logits, next_obs)
        choosing = self.updater(self.net.logits, next_obs) if self.config.double else logits
        best = allowed_only(self.net.mean(choosing), next_obs).argmax(dim=1)
        probs, atoms = _of(logits, best).softmax(dim=1), self.net.atoms
        moved, spacing = reward[:, None] + discount[:, None] * atoms, atoms[1] - atoms[0]
        beyond = (moved < atoms[0] - spacing / 2) | (moved > atoms[-1] + spacing / 2)
        return project(probs, atoms, reward, discount), (probs * beyond).sum(dim=1).mean()


def project(probs: Tensor, atoms: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return the distribution (B, N) of reward + discount * Z on the atoms (N,) of Z (B, N).

    Algorithm 1 of the paper: probability between two atoms is split so that the mean is preserved;
    probability beyond all atoms goes to the nearest one.
    """
    n = len(atoms)
    # Tz_j = r + discount * z_j, clipped to [v_min, v_max]
    moved = reward[:, None] + discount[:, None] * atoms
    moved = moved.clamp_(atoms[0], atoms[-1])
    # In units of the atom spacing: b_j = (Tz_j - v_min) / (z_2 - z_1)
    place = moved.sub_(atoms[0]).mul_((n - 1) / (atoms[-1] - atoms[0]))
    below = place.floor().clamp_(max=n - 2)
    above_share = (place - below).mul_(probs)
    index = below.long()
    # m_l += p_j (u - b_j), m_u += p_j (b_j - l), with u = l + 1
    out = torch.zeros_like(probs).scatter_add_(1, index, probs - above_share)
    return out.scatter_add_(1, index + 1, above_share)


def _of(logits: Tensor, action: Tensor) -> Tensor:
    """Return the logits (B, atoms) of one action for each row."""
    n_atoms = logits.shape[2]
    return logits.gather(1, action[:, None, None].expand(-1, 1, n_atoms)).squeeze(1)
