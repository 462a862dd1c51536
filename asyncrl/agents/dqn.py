"""DQN: learns the value of each action, acts on the best one, explores by random actions.

Papers:

* Mnih et al. (2013), Playing Atari with deep reinforcement learning,
  https://arxiv.org/abs/1312.5602: replay; the target network came in 2015, with
  https://www.nature.com/articles/nature14236.
* van Hasselt et al. (2016), Deep reinforcement learning with double Q-learning,
  https://arxiv.org/abs/1509.06461.
* Wang et al. (2016), Dueling network architectures, https://arxiv.org/abs/1511.06581.
* Horgan et al. (2018), Distributed prioritized experience replay (Ape-X),
  https://arxiv.org/abs/1803.00933: actors with a ladder of exploration rates, n-step returns.
* Fortunato et al. (2018), Noisy networks for exploration, https://arxiv.org/abs/1706.10295, see
  `parts/networks.py`.

With action values Q, target network Q', and s', which may lie n steps ahead:

    y  = r + discount * Q'(s', a*)
    a* = argmax over a of Q(s', a), or of Q'(s', a) where `double` is off
    L  = mean of (Q(s, a) - y)^2, or of Huber's loss of Q(s, a) - y

`r` is the n-step return, `discount` is gamma^n, or 0 where the episode terminated.

Deviations, on purpose:

* Adam instead of RMSprop.
* Errors are clipped only by the Huber loss.
* The target network follows by Polyak averaging (tau) unless it is set to be copied at intervals.
* Rewards are not clipped: that belongs into an environment wrapper.
* Discount and n-step returns belong to the replay buffer, which provides `reward` and `discount`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents.parts.choosing import REWARD_SCALE
from asyncrl.agents.parts.networks import (
    AllowedOnly,
    MakeNetwork,
    NetworkInput,
    n_actions,
    pick_device,
    q_network,
    with_mask,
)
from asyncrl.agents.parts.q_learning import QAgent, QConfig, value_policy
from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.agents.parts.user_networks import own_network
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.segment import ColumnSpec

Loss = Literal["huber", "mse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(QConfig):
    """By default, double DQN with a ladder of exploration rates."""

    network: MakeNetwork | None = None
    """Factory of a custom network in place of the default one. It maps a batch of float
    observations (images within [0, 1]), or a dict of them by field name such as "camera/left", to
    (batch, n_actions) values. Must be importable or cloudpickle-able."""

    loss: Loss = "mse"
    """`mse` is the squared error. `huber` is half of that, with slope 1 for errors larger than 1;
    it suits clipped rewards and is slow for returns of tens or more."""

    actor_priorities: bool = False
    """Let actors store the value of the action taken and of the best action with each row, and the
    scale of both if rewards are normalised. A prioritized replay computes initial priorities from
    them."""

    def __post_init__(self) -> None:
        QConfig.__post_init__(self)
        self.check_shapes(self.network)

    def build(self, spec: EnvSpec, context: PolicyContext) -> DQNAgent:
        """Return the learner's agent."""
        return DQNAgent(self, spec, context, pick_device(self.device))

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy with the network on a device."""
        return value_policy(self, spec, context, device, stores_values=self.actor_priorities)

    def make_network(self, spec: EnvSpec) -> nn.Module:
        """Return the network, from observations to values (B, actions)."""
        n = n_actions(spec, "DQN")
        if self.network is not None:
            return with_mask(own_network("network", self.network, spec, [(2, n)]), spec)
        network = q_network(
            spec.observation, self.hidden, n, dueling=self.dueling, sigma=self.sigma
        )
        return with_mask(network, spec)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns of initial priorities and normalisation, if they are on."""
        units = (REWARD_SCALE,) if self.normalize_reward else ()
        values = ("q_taken", "q_best", *units) if self.actor_priorities else ()
        return (*(ColumnSpec(name, "float32") for name in values), *self.norm_columns)


class DQNAgent(QAgent):
    """The part that learns, and acts as well."""

    config: DQNConfig

    def __init__(
        self, config: DQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.error = functional.smooth_l1_loss if config.loss == "huber" else functional.mse_loss
        self.unmasked = self.net.network if isinstance(self.net, AllowedOnly) else self.net
        """The network without masks: data may contain an action that a mask forbids."""

    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        target = self.targets(next_obs, reward, data["discount"])
        q = self.updater(self.unmasked, obs).gather(1, data["action"][:, None]).squeeze(1)
        if "weight" in data:
            loss = (data["weight"] * self.error(q, target, reduction="none")).mean()
        else:
            loss = self.error(q, target)
        return loss, {"q_mean": q.detach().mean(), "q": q.detach(), "target": target}

    @torch.no_grad()
    def targets(self, next_obs: NetworkInput, reward: Tensor, discount: Tensor) -> Tensor:
        """Return y of each row."""
        next_q = self.updater(self.target, next_obs)
        choosing_q = self.updater(self.net, next_obs) if self.config.double else next_q
        best = choosing_q.argmax(dim=1, keepdim=True)
        value: Tensor = next_q.gather(1, best).squeeze(1)
        return reward + discount * value
