"""TD3: a deterministic policy, and three measures against overestimation by its critics.

Paper: Fujimoto et al. (2018), Addressing Function Approximation Error in Actor-Critic Methods,
https://arxiv.org/abs/1802.09477

With policy pi, action values Q_1 and Q_2, target networks pi' and Q', and s', which may lie n steps
ahead:

    a'   = clip(pi'(s') + clip(target_noise * N(0, 1), -c, c), -1, 1)       c = `target_noise_clip`
    y    = r + discount * min over i of Q'_i(s', a')
    J_Q  = mean of (Q_i(s, a) - y)^2
    J_pi = - mean of Q_1(s, pi(s))

Targets use the minimum of the target critics; noise smooths the target policy's actions; policy and
target networks are updated only with every second update of the critics. The discount comes with
the batch, since gamma and n-step returns belong to the replay.

Deviations from the paper, on purpose:

* Networks see actions scaled to [-1, 1], and all noise is in these units, that is, in units of half
  the action range.
* Critic losses are averaged over the critics, not summed: Adam is invariant to the factor.
* The first optimisation step updates the policy too, and then every `policy_interval_opt_steps`-th.
* Widths of networks and learning rates are those of the authors' later code, see
  https://github.com/sfujim/TD3.
* Exploration may differ between environments, as in Ape-X (Horgan et al. 2018,
  https://arxiv.org/abs/1803.00933), and its noise may be correlated over time, like the
  Ornstein-Uhlenbeck process of DDPG (Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    make_actor,
)
from asyncrl.agents.parts.choosing import ChooserSpec, NoisyChooser
from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, pick_device
from asyncrl.agents.parts.schedules import LearningRate, Rate
from asyncrl.agents.parts.updater import TargetNetwork
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, NotNegative, Within
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3Config(ActorCriticConfig):
    """Settings of TD3."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor: float observations (B, ...), images within [0, 1], or a dict of
    them by field name -> (B, action dimensions), before squashing by tanh. Must be importable or
    cloudpickle-able. None uses the default one."""

    critic_learning_rate: Annotated[LearningRate, COMMON] = 3e-4
    """Learning rate of the critics' Adam."""

    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Polyak factor of the target networks: the share of the networks that enters them in each
    update of the policy."""

    policy_interval_opt_steps: Count = 2
    """Optimisation steps between two updates of policy and target networks."""

    target_noise: NotNegative = 0.2
    """Standard deviation of the noise that smooths the target policy's actions, in units of half
    the action range."""

    target_noise_clip: NotNegative = 0.5
    """Clip of that noise, in the same units."""

    noise: Annotated[Rate, COMMON] = 0.1
    """Standard deviation of the exploration noise, in units of half the action range. A schedule
    counts environment steps of the whole run."""

    noise_ladder: Annotated[float, Within("[1, inf)")] = 1.0
    """Spread of the exploration noise over the N environments of all actors: the first uses `noise`
    times this factor, the last `noise` divided by it, the others a geometric series in between. 1
    uses the same noise everywhere."""

    can_accumulate: ClassVar[bool] = True

    def build(self, spec: EnvSpec, context: PolicyContext) -> TD3Agent:
        """Return the learner's agent."""
        return TD3Agent(self, spec, context, pick_device(self.device))

    def make_actor(self, spec: EnvSpec) -> nn.Module:
        """Return the actor's network, of actions before squashing."""
        return make_actor(spec, self.hidden, self.n_dimensions(spec), self.actor_network)

    def chooser_spec(self) -> ChooserSpec:
        """Return what chooses from the actor's outputs."""
        settings = {**self.bounded, "noise": self.noise, "noise_ladder": self.noise_ladder}
        return ChooserSpec(NoisyChooser, settings)


class TD3Agent(ActorCritic):
    """The part that learns, and acts as well."""

    config: TD3Config

    def __init__(
        self, config: TD3Config, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.target_networks = [
            TargetNetwork(one, config.tau) for one in (self.critics, self.actor)
        ]
        self.target_critics, self.target_actor = (one.network for one in self.target_networks)
        self.equip()
        self.parts |= {"target_critics": self.target_critics, "target_actor": self.target_actor}

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return noise, and whether to update the policy."""
        turn = self.policy_turn(self.config.policy_interval_opt_steps)
        return {"noise": self.normal(rows, self.bounds.size), **turn}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update the critics by one step, and the policy in some of the steps."""
        obs, next_obs, reward = self.updater.inputs(data)
        target = reward + data["discount"] * self.value(next_obs, data["noise"])
        q = self.values(self.critics, obs, self.scaled(data["action"]))
        loss, metrics = self.critic_loss(q, target, data.get("weight"))
        metrics |= self.updater.minimize(loss, "critic")
        if "improve_policy" in data:
            loss = -self.values(self.first_critic, obs, self.act_by(self.actor, obs)).mean()
            metrics["actor_loss"] = loss.detach()
            metrics |= self.updater.minimize(loss, "actor")
            for network in self.target_networks:
                network.soft_update()
        return metrics

    @torch.no_grad()
    def value(self, obs: NetworkInput, noise: Tensor) -> Tensor:
        """Return the minimum of the target critics for the target policy's smoothed actions."""
        clip = self.config.target_noise_clip
        noise = (self.config.target_noise * noise).clamp(-clip, clip)
        action = (self.act_by(self.target_actor, obs) + noise).clamp(-1.0, 1.0)
        return self.values(self.target_critics, obs, action).amin(dim=0)

    def first_critic(self, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return Q_1(s, a), (1, B)."""
        q: Tensor = self.critics(obs, action, 1)
        return q

    def act_by(self, actor: nn.Module, obs: NetworkInput) -> Tensor:
        """Return actions in [-1, 1]."""
        unit: Tensor = self.updater(actor, obs).tanh()
        return unit
