"""Soft actor-critic: actions from bounded intervals, as rewarding and as random as can be at once.

    Haarnoja et al. 2018a, Soft Actor-Critic, https://arxiv.org/abs/1801.01290
    Haarnoja et al. 2018b, Soft Actor-Critic Algorithms and Applications,
    https://arxiv.org/abs/1812.05905 (no value network, automatic temperature: what is here)

With policy pi, action values Q_1 to Q_n, their slow copies Q', temperature alpha, and s', which may
lie n steps ahead:

    V(s)    = min over i of Q'_i(s, a) - alpha * log pi(a|s)                   a ~ pi(.|s)
    y       = r + discount * V(s')
    J_Q     = mean of (Q_i(s, a) - y)^2
    J_pi    = mean of alpha * log pi(a|s) - min over i of Q_i(s, a)            a ~ pi(.|s)
    J_alpha = - mean of log alpha * (log pi(a|s) + target entropy)

log pi is computed in `_sac_networks.py`. The discount comes with the batch, since gamma and n-step
returns belong to the replay.

Deviations from the papers, on purpose:

* Networks see actions scaled to [-1, 1], and log pi is the density of the scaled action. So
  neither the target entropy nor alpha depends on the units of an environment.
* Gradient descent moves log alpha, not alpha, which therefore stays positive.
* Critic losses are averaged over the critics, not added up: Adam does not see the factor.
* log of the standard deviation is clamped to [-5, 2].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncrl.agents._actor_critic import ActorCritic, SlowCopy, make_actor
from asyncrl.agents._bounds import Bounds
from asyncrl.agents._critics import make_critics
from asyncrl.agents._sac_networks import SquashedConfig, SquashedPolicy, sample_action
from asyncrl.agents.networks import NetworkInput
from asyncrl.agents.torch_agent import pick_device, seeded, use_threads
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(SquashedConfig):
    """Settings of soft actor-critic."""

    tau: float = 0.005
    """How far the slow critics follow the critics, at each optimisation step."""

    can_accumulate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        SquashedConfig.__post_init__(self)
        if not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"agent.tau must lie in (0, 1], got {self.tau}")

    def build(self, spec: EnvSpec, context: PolicyContext) -> SACAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return SACAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> SACPolicy:
        """Make an actor's policy: the actor network and nothing else, on the CPU."""
        return SACPolicy(self, spec, context, torch.device("cpu"))


class SACPolicy(SquashedPolicy):
    """The part that acts."""

    def __init__(
        self, config: SACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        bounds = Bounds(spec, "SAC")
        with seeded(context.seed):
            actor = make_actor(spec, config.hidden, 2 * bounds.size, config.actor_network)
        super().__init__(actor, bounds, config, spec, context, device)


class SACAgent(SACPolicy, ActorCritic):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: SACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        with seeded(context.seed + 1):
            critics = make_critics(spec, config.hidden, config.n_critics, config.critic_network)
        self.equip(config, critics, context.seed)
        self._slow = SlowCopy(self.critics, config.tau)
        self.targets = self._slow.network
        self._temperature = config.temperature(self.bounds.size, device)
        self._finish = config.uncompiled(self._follow_up)
        self.parts |= {"targets": self.targets, **self._temperature.parts}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Improve critics, actor and temperature by one step each."""
        noise = self._normal(2, len(batch["action"]), self.bounds.size)
        return self._learn(batch, {"noise": noise})

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        obs, next_obs, reward = self._updates.inputs(data)
        noise, alpha = data["noise"], self._temperature.alpha()
        target = reward + data["discount"] * self._value(next_obs, noise[0], alpha)
        q = self._values(self.critics, obs, self._scaled(data["action"]))
        critic_loss = self._move_critics(q, target, data.get("weight"))
        q = q.detach()
        actor_loss, log_prob = self._improve_actor(obs, noise[1], alpha)
        entropy = -log_prob.mean()
        self._finish(entropy)
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha,
            "entropy": entropy,
            "q_mean": q.mean(),
            "q": q,
            "target": target,
        }

    @torch.no_grad()
    def _value(self, obs: NetworkInput, noise: Tensor, alpha: Tensor) -> Tensor:
        action, log_prob = self._sample(obs, noise)
        least = self._values(self.targets, obs, action).amin(dim=0)
        return least - alpha * log_prob

    def _improve_actor(
        self, obs: NetworkInput, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        action, log_prob = self._sample(obs, noise)
        least = self._values(self.critics, obs, action).amin(dim=0)
        loss = (alpha * log_prob - least).mean()
        told = loss.detach(), log_prob.detach()
        self._descend(self._actor_adam, loss)
        return told

    def _follow_up(self, entropy: Tensor) -> None:
        """Improve the temperature, and let the slow critics follow."""
        self._temperature.improve(entropy)
        self._slow.follow()

    def _sample(self, obs: NetworkInput, noise: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision():
            out = self._in_parts(self._actor, obs)
        return sample_action(out.float(), noise)
