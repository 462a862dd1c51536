"""CrossQ: SAC without slow critics, since batch normalisation keeps the critics steady enough.

    Bhatt et al. 2024, CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
    Efficiency and Simplicity, https://arxiv.org/abs/1902.05605

With policy pi, action values Q_1 to Q_n, temperature alpha, and s', which may lie n steps ahead:

    y       = r + discount * (min over i of Q_i(s', a') - alpha * log pi(a'|s'))     a' ~ pi(.|s')
    J_Q     = mean of (Q_i(s, a) - y)^2
    J_pi    = mean of alpha * log pi(a|s) - min over i of Q_i(s, a)                  a ~ pi(.|s)
    J_alpha = - mean of log alpha * (log pi(a|s) + target entropy)

A transition's two actions, the one taken and the one the policy would take next, pass the critics
side by side, so that one batch of both is what they are normalised by; y is not learnt through.
Where the policy acts, and where it climbs the critics, running means and deviations are used, and
networks of your own are in evaluation mode. The discount comes with the batch, since gamma and
n-step returns belong to the replay.

Why this one, of those that came after SAC and TD3: the paper reports scores like those of REDQ and
DroQ, or better ones, with one optimisation step for each environment step where these take 20,
which a CPU has no time for. TQC (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269) takes one
as well. HalfCheetah-v5 here, after 25,000 environment steps, one optimisation step of 256 rows for
each, 256 units a layer, one core, one seed:

                                      score     seconds of CPU
    TD3                                 667                 86
    SAC                                2737                122
    TQC, 2 critics of 25 quantiles     2538                193
    CrossQ                             4368                213

A step takes 1.7 times as long as one of SAC; SAC's last score is passed, with 3038, after 11,000.

Deviations from the paper, on purpose:

* Networks see actions scaled to [-1, 1], and log pi is the density of the scaled action.
* Critics have 256 units a layer, not 2048, which no CPU could train in reasonable time.
* Critic losses are averaged over the critics, not added up: Adam does not see the factor.
* The first optimisation step updates the policy too, and then every `policy_interval_opt_steps`-th.
* log of the standard deviation is clamped to [-5, 2].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncrl.agents._actor_critic import (
    ActorCritic,
    check_policy_interval,
    make_actor,
)
from asyncrl.agents._bounds import Bounds
from asyncrl.agents._critics import make_critics
from asyncrl.agents._crossq_networks import (
    in_training_mode,
    joined,
    renormed_actor,
    renormed_critics,
)
from asyncrl.agents._sac_networks import SquashedConfig, SquashedPolicy, sample_action
from asyncrl.agents.networks import NetworkInput
from asyncrl.agents.schedules import Schedule
from asyncrl.agents.torch_agent import pick_device, seeded, use_threads
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import check_not_negative, check_widths
from asyncrl.core.types import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossQConfig(SquashedConfig):
    """Settings of CrossQ."""

    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of each critic; those of the actor are `hidden`."""

    actor_learning_rate: float | Schedule = 1e-3
    """Of the actor's Adam."""

    adam_beta1: float = 0.5
    """How much of its former direction Adam keeps in each step, in [0, 1)."""

    policy_interval_opt_steps: int = 3
    """Optimisation steps from one update of policy and temperature to the next."""

    renorm_warmup_opt_steps: int = 100_000
    """Optimisation steps in which batches are normalised by themselves; running means and
    deviations are brought in later."""

    def __post_init__(self) -> None:
        SquashedConfig.__post_init__(self)
        check_widths("critic_hidden", self.critic_hidden)
        if not 0.0 <= self.adam_beta1 < 1.0:
            raise ConfigError(f"agent.adam_beta1 must lie in [0, 1), got {self.adam_beta1}")
        check_policy_interval(self.policy_interval_opt_steps, self.accelerate)
        check_not_negative("renorm_warmup_opt_steps", self.renorm_warmup_opt_steps)

    def check_accumulation(self) -> None:
        """Say why there is none here."""
        if self.accumulate > 1:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} takes a batch in parts, but CrossQ's networks "
                "normalise a batch by its own means and deviations, which those of its parts are "
                "not; leave it at 1, and take smaller batches"
            )
        SquashedConfig.check_accumulation(self)

    def build(self, spec: EnvSpec, context: PolicyContext) -> CrossQAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return CrossQAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> CrossQPolicy:
        """Make an actor's policy: the actor network and nothing else, on the CPU."""
        return CrossQPolicy(self, spec, context, torch.device("cpu"))


class CrossQPolicy(SquashedPolicy):
    """The part that acts."""

    def __init__(
        self, config: CrossQConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        bounds = Bounds(spec, "CrossQ")
        with seeded(context.seed):
            if config.actor_network is None:
                actor = renormed_actor(
                    spec.observation,
                    config.hidden,
                    2 * bounds.size,
                    config.renorm_warmup_opt_steps,
                )
            else:
                actor = make_actor(spec, (), 2 * bounds.size, config.actor_network)
        super().__init__(actor, bounds, config, spec, context, device)


class CrossQAgent(CrossQPolicy, ActorCritic):
    """The part that learns, and acts as well."""

    switches_modes: ClassVar[bool] = False  # twins of both networks learn

    def __init__(
        self, config: CrossQConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        with seeded(context.seed + 1):
            if config.critic_network is None:
                critics = renormed_critics(
                    spec.observation,
                    self.bounds.size,
                    config.n_critics,
                    config.critic_hidden,
                    config.renorm_warmup_opt_steps,
                )
            else:
                critics = make_critics(spec, (), config.n_critics, config.critic_network)
        self.config = config
        self.equip(config, critics, context.seed)
        for adam in (self._actor_adam, self._critic_adam):
            adam.beta1 = config.adam_beta1
        # The same parameters and buffers, in the mode that normalises a batch by itself.
        self._learning_actor = in_training_mode(self._actor)
        self._learning_critics = in_training_mode(self.critics)
        self._temperature = config.temperature(self.bounds.size, device)
        self._finish = config.uncompiled(self._temperature.improve)
        self._newest: dict[str, Tensor] = {}
        self._always = torch.zeros(1, device=device)
        self.parts |= self._temperature.parts

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Improve the critics by one step, and actor and temperature in some of the steps.

        What is told of those in the other steps is what was told the last time.
        """
        more = {"noise": self._normal(2, len(batch["action"]), self.bounds.size)}
        if self.version % self.config.policy_interval_opt_steps == 0:
            # What a batch consists of tells recorded and compiled updates apart.
            more["improve_policy"] = self._always
        told = self._learn(batch, more)
        for name in ("actor_loss", "entropy"):
            if name in told:
                self._newest[name] = told[name]
        return told | self._newest

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        obs, next_obs, reward = self._updates.inputs(data)
        noise, alpha = data["noise"], self._temperature.alpha()
        with torch.no_grad():
            next_action, log_prob = self._sample(self._actor, next_obs, noise[0])
        # Q(s, a) and Q(s', a') in one pass: both are normalised by both.
        actions = torch.cat([self._scaled(data["action"]), next_action])
        both = self._values(self._learning_critics, joined(obs, next_obs), actions)
        q, next_q = both.chunk(2, dim=1)
        least = next_q.detach().amin(dim=0)
        target = reward + data["discount"] * (least - alpha * log_prob)
        critic_loss = self._move_critics(q, target, data.get("weight"))
        q = q.detach()
        told = {"critic_loss": critic_loss, "alpha": alpha, "q_mean": q.mean()}
        if "improve_policy" in data:
            told |= self._improve_actor(obs, noise[1], alpha)
            self._finish(told["entropy"])
        return told | {"q": q, "target": target}

    def _improve_actor(self, obs: NetworkInput, noise: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        action, log_prob = self._sample(self._learning_actor, obs, noise)
        least = self._values(self.critics, obs, action).amin(dim=0)
        loss = (alpha * log_prob - least).mean()
        told = {"actor_loss": loss.detach(), "entropy": -log_prob.detach().mean()}
        self._descend(self._actor_adam, loss)
        return told

    def _sample(
        self, actor: torch.nn.Module, obs: NetworkInput, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        with self._precision():
            out: Tensor = actor(obs)
        return sample_action(out.float(), noise)
