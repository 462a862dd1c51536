"""Soft actor-critic for bounded continuous actions: maximises reward and entropy together.

Papers:

* Haarnoja et al. (2018a), Soft Actor-Critic, https://arxiv.org/abs/1801.01290
* Haarnoja et al. (2018b), Soft Actor-Critic Algorithms and Applications,
  https://arxiv.org/abs/1812.05905: no value network, automatic temperature; implemented here.

With policy pi, action values Q_1 to Q_n, target networks Q', temperature alpha, and s', which may
lie n steps ahead:

    V(s)    = min over i of Q'_i(s, a) - alpha * log pi(a|s)                   a ~ pi(.|s)
    y       = r + discount * V(s')
    J_Q     = mean of (Q_i(s, a) - y)^2
    J_pi    = mean of alpha * log pi(a|s) - min over i of Q_i(s, a)            a ~ pi(.|s)
    J_alpha = - mean of log alpha * (log pi(a|s) + target entropy)

log pi is computed by the actor's network. The discount comes with the batch, since gamma and n-step
returns belong to the replay.

Deviations from the papers, on purpose:

* Networks see actions scaled to [-1, 1], and log pi is the density of the scaled action. So
  neither the target entropy nor alpha depends on the units of an environment.
* Gradient descent changes log alpha, not alpha, which therefore stays positive.
* Critic losses are averaged over the critics, not summed: Adam is invariant to the factor.
* The log standard deviation is clamped to [-5, 2].
* The actor learns at 3e-4, critics and alpha at 1e-3 (papers: all at 3e-4), and the first 1,000
  environment steps of a run are random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh, softplus

from asyncrl.agents.parts.actor_critic import ActorCritic, ActorCriticConfig, make_actor
from asyncrl.agents.parts.choosing import ChooserSpec, SquashedChooser
from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, pick_device
from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam
from asyncrl.agents.parts.updater import TargetNetwork
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Finite, NotNegative, Positive, Within
from asyncrl.core.env import EnvSpec


class Temperature:
    """Entropy temperature: fixed, or adapted to a target entropy."""

    def __init__(
        self,
        alpha: float | None,
        initial_alpha: float,
        learning_rate: float,
        target_entropy: float,
        device: torch.device,
    ) -> None:
        """Adapt the temperature if `alpha` is None."""
        self._fixed = None if alpha is None else torch.tensor(alpha).to(device)
        self._target_entropy = target_entropy
        self._log_alpha = torch.tensor(math.log(initial_alpha), device=device)
        self._adam = FusedAdam([self._log_alpha], learning_rate)

    @property
    def parts(self) -> dict[str, Tensor | FastOptimizer]:
        """Return the parts of an agent's state."""
        return {"log_alpha": self._log_alpha, "alpha_adam": self._adam}

    def alpha(self) -> Tensor:
        """Return the current temperature."""
        return self._log_alpha.exp() if self._fixed is None else self._fixed

    def improve(self, entropy: Tensor) -> None:
        """Raise the temperature if the entropy is below its target, lower it if above."""
        if self._fixed is not None:
            return
        # The gradient of J_alpha in log alpha: mean of -log pi(a|s), minus the target entropy.
        self._adam.step([entropy - self._target_entropy])


_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashedConfig(ActorCriticConfig):
    """Settings of an actor with a squashed Gaussian, and of its entropy temperature."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor: float observations (B, ...), images within [0, 1], or a dict of
    them by field name -> (B, 2 * action dimensions): the means, then the log standard deviations,
    before squashing. Must be importable or cloudpickle-able. None uses the default one."""

    alpha: Annotated[NotNegative | None, COMMON] = None
    """Fixed entropy temperature, in units of reward. None adapts it."""

    initial_alpha: Positive = 1.0
    """Initial temperature when it is adapted."""

    target_entropy: Finite | None = None
    """Target entropy for the adapted temperature, of actions scaled to [-1, 1]. None means minus
    the number of action dimensions."""

    alpha_learning_rate: Positive = 1e-3
    """Learning rate of the temperature's Adam."""

    def make_actor(self, spec: EnvSpec) -> nn.Module:
        """Return the actor's network, of means and log standard deviations."""
        return make_actor(spec, self.hidden, 2 * self.n_dimensions(spec), self.actor_network)

    def chooser_spec(self) -> ChooserSpec:
        """Return what chooses from the actor's outputs."""
        return ChooserSpec(SquashedChooser, self.bounded)

    def temperature(self, n_dimensions: int, device: torch.device) -> Temperature:
        """Return the temperature for this number of action dimensions."""
        aim = -float(n_dimensions) if self.target_entropy is None else self.target_entropy
        settings = self.alpha, self.initial_alpha, self.alpha_learning_rate
        return Temperature(*settings, aim, device)


def sample_action(actor_output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in [-1, 1] and their log densities."""
    mean, log_std = actor_output.chunk(2, dim=1)
    log_std = hardtanh(log_std, _LOG_STD_MIN, _LOG_STD_MAX)  # clamps, with a cheaper gradient
    u = torch.addcmul(mean, log_std.exp(), noise)
    # a = tanh u, so log pi(a|s) = sum_j log N(u_j; mean, std) - log(1 - tanh^2 u_j), where
    # log N = -noise^2 / 2 - log std - log(2 pi) / 2 and, without cancellation for large |u|,
    # log(1 - tanh^2 u) = 2 (log 2 - u - softplus(-2 u)).
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    squash = math.log(2.0) - u - softplus(-2.0 * u)
    log_prob: Tensor = (normal - 2.0 * squash).sum(dim=1)
    return u.tanh(), log_prob


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(SquashedConfig):
    """Settings of soft actor-critic."""

    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Polyak factor of the target networks: the share of the critics that enters them in each
    optimisation step."""

    can_accumulate: ClassVar[bool] = True

    def build(self, spec: EnvSpec, context: PolicyContext) -> SACAgent:
        """Return the learner's agent."""
        return SACAgent(self, spec, context, pick_device(self.device))


class SACAgent(ActorCritic):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: SACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.target_network = TargetNetwork(self.critics, config.tau)
        self.targets = self.target_network.network
        self.equip()
        self.temperature = config.temperature(self.bounds.size, device)
        self.parts |= {"targets": self.targets, **self.temperature.parts}

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return the noise of actions, for the next observations and for the current ones."""
        return {"noise": self.normal(2, rows, self.bounds.size)}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update critics, actor and temperature by one step each."""
        obs, next_obs, reward = self.updater.inputs(data)
        noise, alpha = data["noise"], self.temperature.alpha()
        target = reward + data["discount"] * self.value(next_obs, noise[0], alpha)
        q = self.values(self.critics, obs, self.scaled(data["action"]))
        loss, metrics = self.critic_loss(q, target, data.get("weight"))
        metrics |= self.updater.minimize(loss, "critic")
        action, log_prob = sample_action(self.updater(self.actor, obs), noise[1])
        loss = (alpha * log_prob - self.values(self.critics, obs, action).amin(dim=0)).mean()
        entropy = -log_prob.detach().mean()
        metrics |= {"actor_loss": loss.detach(), "alpha": alpha, "entropy": entropy}
        metrics |= self.updater.minimize(loss, "actor")
        self.temperature.improve(self.updater.mean(entropy))
        self.target_network.soft_update()
        return metrics

    @torch.no_grad()
    def value(self, obs: NetworkInput, noise: Tensor, alpha: Tensor) -> Tensor:
        """Return V(s)."""
        action, log_prob = sample_action(self.updater(self.actor, obs), noise)
        return self.values(self.targets, obs, action).amin(dim=0) - alpha * log_prob
