"""Soft actor-critic for discrete actions: maximises reward and entropy together.

Papers:

* Christodoulou (2019), Soft Actor-Critic for Discrete Action Settings,
  https://arxiv.org/abs/1910.07207
* Zhou et al. (2022), Revisiting Discrete Soft Actor-Critic, https://arxiv.org/abs/2209.10081

With policy pi, action values Q_1 to Q_n, their mean or minimum Q (see `critic_reduction`), target
networks Q', temperature alpha, and s', which may lie n steps ahead:

    V(s)    = sum over a of pi(a|s) * (Q'(s, a) - alpha * log pi(a|s))
    y       = r + discount * V(s')
    J_Q     = mean of (Q_i(s, a) - y)^2, or, with c = `clip_change`, of the larger of that and of
              (Q'_i(s, a) + clip(Q_i(s, a) - Q'_i(s, a), -c, c) - y)^2
    J_pi    = mean of the sum over a of pi(a|s) * (alpha * log pi(a|s) - Q(s, a))
    J_alpha = log alpha * (mean entropy of pi - target entropy)

SAC estimates expectations over actions from one sample; here they are exact sums over all actions.
The discount comes with the batch, since gamma and n-step returns belong to the replay.

Deviations from the first paper, on purpose:

* The target entropy is a smaller share of the maximum: 0.98 of it makes the policy nearly uniform.
* As in the second paper, the critics' values are averaged by default. The first paper takes the
  minimum, which underestimates: with target networks at tau 0.02, CartPole then stays at returns of
  150 to 200 for hundreds of thousands of environment steps.
* As in the second paper, critics may be kept near their target networks. Its penalty on changes of
  the entropy is left out; rows would have to store the entropy of the acting policy.
* The actor learns from the critics' values before the same step, which are already computed.
* Gradient descent changes log alpha, not alpha, which therefore stays positive.
* Critic losses are averaged over the critics, not summed: Adam is invariant to the factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor

from asyncrl.agents.parts.actor_critic import make_actor
from asyncrl.agents.parts.choosing import ChooserSpec, LogitChooser
from asyncrl.agents.parts.critics import ChoiceValues, make_action_values
from asyncrl.agents.parts.exploration import FORBIDDEN
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    n_actions,
    of_actions,
    pick_device,
    with_mask,
)
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.schedules import Rate
from asyncrl.agents.parts.torch_agent import TorchConfig, TorchPolicy, flatten_pair, seeded
from asyncrl.agents.parts.updater import TargetNetwork, Updater, UpdatingAgent
from asyncrl.agents.sac import Temperature
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import (
    COMMON,
    Count,
    Natural,
    NotNegative,
    Positive,
    PositiveOrOff,
    Share,
    Widths,
    Within,
)
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array

CriticReduction = Literal["min", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteSACConfig(TorchConfig):
    """Settings of discrete soft actor-critic."""

    hidden: Annotated[Widths, COMMON] = (64, 64)
    """Units of each hidden layer of the actor and of each critic. For images, these layers follow
    the convolutions."""

    n_critics: Count = 2
    """Number of critics; each has its own network."""

    critic_reduction: CriticReduction = "mean"
    """How the critics' values are combined: `mean`, or `min`, which underestimates."""

    clip_change: PositiveOrOff = 0.0
    """Distance from its target network, in units of Q values, within which a critic learns freely.
    0 sets no limit."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor: float observations (B, ...), images within [0, 1], or a dict of
    them by field name -> (B, actions) logits. Must be importable or cloudpickle-able. None uses the
    default one."""

    critic_network: MakeNetwork | None = None
    """Factory of a custom critic, called `n_critics` times: observations as above -> (B, actions)
    values. None uses the default one."""

    alpha: Annotated[NotNegative | None, COMMON] = None
    """Fixed entropy temperature, in units of reward. None adapts it."""

    initial_alpha: Positive = 1.0
    """Initial temperature when it is adapted."""

    target_entropy_share: Share = 0.5
    """Target entropy for the adapted temperature, as a share of the maximum, log(number of
    allowed actions)."""

    actor_learning_rate: Annotated[Rate, COMMON] = 3e-4
    """Learning rate of the actor's Adam."""

    critic_learning_rate: Annotated[Rate, COMMON] = 3e-4
    """Learning rate of the critics' Adam."""

    alpha_learning_rate: Positive = 3e-4
    """Learning rate of the temperature's Adam."""

    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Polyak factor of the target networks: the share of the critics that enters them in each
    optimisation step."""

    random_env_steps: Natural = 1000
    """Initial environment steps of the whole run with uniformly random actions."""

    max_grad_norm: PositiveOrOff = 0.0
    """Maximum gradient norm, of the actor and of the critics separately. Larger gradients are
    scaled down to it; 0 disables clipping."""

    can_accumulate: ClassVar[bool] = True

    def build(self, spec: EnvSpec, context: PolicyContext) -> DiscreteSACAgent:
        """Return the learner's agent."""
        return DiscreteSACAgent(self, spec, context, pick_device(self.device))

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy with the actor network only."""
        n = n_actions(spec, "discrete SAC")
        with seeded(context.seed):
            actor = with_mask(make_actor(spec, self.hidden, n, self.actor_network), spec)
        chooser = ChooserSpec(LogitChooser, {"random_env_steps": self.random_env_steps})
        return TorchPolicy(self.with_norms(actor, spec.observation), chooser, spec, context, device)


class DiscreteSACAgent(UpdatingAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: DiscreteSACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.actor, self.n_actions = self.net, n_actions(spec, "discrete SAC")
        with seeded(context.seed + 1):
            critics = make_action_values(
                spec, config.hidden, config.n_critics, config.critic_network, "discrete SAC"
            )
        self.critics = cast(ChoiceValues, critics).to(device).eval()
        self.target_network = TargetNetwork(self.critics, config.tau)
        self.targets = self.target_network.network
        vectors, critic_vectors = flatten_pair(self.actor, self.critics)
        self.actor_adam = FusedAdam(vectors, config.actor_learning_rate)
        self.critic_adam = FusedAdam(critic_vectors, config.critic_learning_rate)
        self.masked = spec.masked
        settings = config.alpha, config.initial_alpha, config.alpha_learning_rate
        # improved by the excess entropy
        self.temperature = Temperature(*settings, 0.0, device)
        self.updater = Updater(
            self,
            config,
            {"actor": self.actor_adam, "critic": self.critic_adam},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model, self.critics],
        )
        self.parts |= {
            "critics": self.critics,
            "targets": self.targets,
            "actor_adam": self.actor_adam,
            "critic_adam": self.critic_adam,
            **self.temperature.parts,
        }

    def priorities(self) -> Array:
        """Return each row's absolute TD error in the last batch, averaged over the critics."""
        return self.updater.priorities()

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update critics, actor and temperature by one step each."""
        obs, next_obs, reward = self.updater.inputs(data)
        alpha = self.temperature.alpha()
        target = reward + data["discount"] * self.value(next_obs, alpha)
        all_q = self.values(self.critics, obs)
        q = of_actions(all_q, data["action"])
        errors = self.errors(q, target, obs, data["action"])
        critic_loss = (data["weight"] * errors).mean() if "weight" in data else errors.mean()
        q, reduced = q.detach(), self.reduced(all_q.detach())
        metrics = {
            "critic_loss": critic_loss.detach(),
            "q_mean": q.mean(),
            "q": q,
            "target": target,
        }
        metrics |= self.updater.minimize(critic_loss, "critic")
        log_pi = self.log_pi(obs)
        pi = log_pi.exp()
        actor_loss = (pi * (alpha * log_pi - reduced)).sum(dim=1).mean()
        entropy = -(pi * log_pi).detach().sum(dim=1).mean()
        metrics |= {"actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": entropy}
        metrics |= self.updater.minimize(actor_loss, "actor")
        excess = entropy - self.config.target_entropy_share * self.most_entropy(log_pi.detach())
        self.temperature.improve(self.updater.mean(excess))
        self.target_network.soft_update()
        return metrics

    @torch.no_grad()
    def value(self, obs: NetworkInput, alpha: Tensor) -> Tensor:
        """Return V(s)."""
        log_pi = self.log_pi(obs)
        reduced = self.reduced(self.values(self.targets, obs))
        return (log_pi.exp() * (reduced - alpha * log_pi)).sum(dim=1)

    def errors(self, q: Tensor, target: Tensor, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return squared errors (critics, B), clipped as `clip_change` says."""
        errors = (q - target).square()
        limit = self.config.clip_change
        if not limit:
            return errors
        with torch.no_grad():
            slow_q = of_actions(self.values(self.targets, obs), action)
        near = slow_q + (q - slow_q).clamp(-limit, limit)
        return torch.maximum(errors, (near - target).square())

    def reduced(self, values: Tensor) -> Tensor:
        """Combine the critics' values (critics, B, actions) into (B, actions)."""
        return values.amin(dim=0) if self.config.critic_reduction == "min" else values.mean(dim=0)

    def log_pi(self, obs: NetworkInput) -> Tensor:
        """Return log pi(a|s) (B, actions) of all actions."""
        logits: Tensor = self.updater(self.actor, obs)
        return logits.log_softmax(dim=1)

    def most_entropy(self, log_pi: Tensor) -> Tensor | float:
        """Return the mean of the largest entropies that policies of log pi (B, actions) can have.

        Those of the allowed actions: alpha would grow without end if they could not reach the
        target.
        """
        if not self.masked:
            return math.log(self.n_actions)
        return (log_pi > FORBIDDEN / 2).sum(dim=1).log().mean()

    def values(self, critics: ChoiceValues, obs: NetworkInput) -> Tensor:
        """Return the values (critics, B, actions) of all actions."""
        return self.updater(critics.of_all, obs, dim=1)
