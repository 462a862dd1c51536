"""CrossQ: SAC without target networks; batch normalisation keeps the critics stable.

Paper: Bhatt et al. (2024), CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater
Sample Efficiency and Simplicity, https://arxiv.org/abs/1902.05605

With policy pi, action values Q_1 to Q_n, temperature alpha, and s', which may lie n steps ahead:

    y       = r + discount * (min over i of Q_i(s', a') - alpha * log pi(a'|s'))     a' ~ pi(.|s')
    J_Q     = mean of (Q_i(s, a) - y)^2
    J_pi    = mean of alpha * log pi(a|s) - min over i of Q_i(s, a)                  a ~ pi(.|s)
    J_alpha = - mean of log alpha * (log pi(a|s) + target entropy)

A transition's two actions, the one taken and the policy's next one, pass the critics in one batch,
so that both are normalised by the same statistics. No gradient flows through y. Acting and the
policy's loss use running statistics, and custom networks are in evaluation mode there. The discount
comes with the batch, since gamma and n-step returns belong to the replay.

Why this successor of SAC and TD3: the paper reports scores equal to or better than those of REDQ
and DroQ, with 1 optimisation step per environment step instead of 20, which
would take too long on a CPU. TQC (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269) needs
only one, too.

CrossQ needs varied observations. Batches with few distinct ones (a bandit, a table) have no
variance to normalise by, and running statistics follow slowly. Use SAC for these.

Deviations from the paper, on purpose:

* Networks see actions scaled to [-1, 1], and log pi is the density of the scaled action.
* Critics have 256 units a layer, not 2048, which no CPU could train in reasonable time.
* Critic losses are averaged over the critics, not summed: Adam is invariant to the factor.
* The first optimisation step updates the policy too, and then every `policy_interval_opt_steps`-th.
* The log standard deviation is clamped to [-5, 2] (authors' code: [-20, 2]).
* Weights have torch's initialisation. The first 1,000 environment steps are random (authors' code:
  5,000).

As in the authors' code, a layer counts its own training passes for the warm-up of its
renormalisation, so that of the policy lasts `policy_interval_opt_steps` times as long.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.actor_critic import ActorCritic, make_actor
from asyncrl.agents.parts.batch_renorm import RenormedCritics, RenormedLayers
from asyncrl.agents.parts.critics import EncodedCritics, make_critics
from asyncrl.agents.parts.networks import NetworkInput, encoder_layers, n_features, pick_device
from asyncrl.agents.parts.schedules import LearningRate
from asyncrl.agents.sac import SquashedConfig, sample_action
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, Widths, Within
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.ranks import Ranks


def renormed_actor(
    observation: BoxSpec | PackedSpec, hidden: Sequence[int], n_outputs: int, warmup_batches: int
) -> nn.Module:
    """Return an actor for any observation space."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation)
    network = RenormedLayers(n_inputs, hidden, n_outputs, warmup_batches)
    return nn.Sequential(*layers, network) if layers else network


def renormed_critics(
    observation: BoxSpec | PackedSpec,
    n_actions: int,
    n_critics: int,
    hidden: Sequence[int],
    warmup_batches: int,
) -> nn.Module:
    """Return critics for any observation space; they share the observation encoder."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation) + n_actions
    critics = RenormedCritics(n_critics, n_inputs, hidden, warmup_batches)
    return EncodedCritics(nn.Sequential(*layers), critics) if layers else critics


def in_training_mode(network: nn.Module) -> nn.Module:
    """Return a network in training mode that shares all parameters and buffers with this one."""
    shared = [*network.parameters(), *network.buffers()]
    twin = copy.deepcopy(network, memo={id(tensor): tensor for tensor in shared})
    return twin.train()


def joined(one: NetworkInput, other: NetworkInput) -> NetworkInput:
    """Return two batches of observations as one."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return torch.cat([one, other])  # type: ignore[list-item]  # both are of one kind
    return {name: torch.cat([field, other[name]]) for name, field in one.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossQConfig(SquashedConfig):
    """Settings of CrossQ."""

    critic_hidden: Widths = (256, 256)
    """Units of each hidden layer of each critic. `hidden` sets those of the actor."""

    actor_learning_rate: Annotated[LearningRate, COMMON] = 1e-3
    """Learning rate of the actor's Adam."""

    adam_beta1: Annotated[float, Within("[0, 1)")] = 0.5
    """Adam's beta1, the momentum, in [0, 1)."""

    policy_interval_opt_steps: Count = 3
    """Optimisation steps between two updates of policy and temperature."""

    renorm_warmup_opt_steps: Natural = 100_000
    """Warm-up of batch renormalisation, in training passes of a layer. Until then a layer
    normalises by the statistics of the batch; afterwards the result is corrected towards running
    statistics. The policy makes one pass per `policy_interval_opt_steps`."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> CrossQAgent:
        """Return the learner's agent."""
        return CrossQAgent(self, spec, context, pick_device(self.device))

    def make_actor(self, spec: EnvSpec) -> nn.Module:
        """Return the actor's network, of means and log standard deviations."""
        size, warmup = 2 * self.n_dimensions(spec), self.renorm_warmup_opt_steps
        if self.actor_network is not None:
            return make_actor(spec, (), size, self.actor_network)
        return renormed_actor(spec.observation, self.hidden, size, warmup)


class CrossQAgent(ActorCritic):
    """The part that learns, and acts as well."""

    config: CrossQConfig
    switches_modes: ClassVar[bool] = False  # copies of both networks in training mode learn

    def __init__(
        self, config: CrossQConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.equip()
        for adam in (self.actor_adam, self.critic_adam):
            adam.beta1 = config.adam_beta1
        # The same parameters and buffers, in the mode that uses batch statistics.
        self.learning_actor = in_training_mode(self.actor)
        self.learning_critics = in_training_mode(self.critics)
        self.temperature = config.temperature(self.bounds.size, device)
        self.parts |= self.temperature.parts

    def make_critics(self, spec: EnvSpec) -> nn.Module:
        """Return the networks of action values."""
        config, n_actions = self.config, self.bounds.size
        if config.critic_network is not None:
            return make_critics(spec, (), config.n_critics, config.critic_network)
        return renormed_critics(
            spec.observation,
            n_actions,
            config.n_critics,
            config.critic_hidden,
            config.renorm_warmup_opt_steps,
        )

    def join(self, ranks: Ranks) -> None:
        """Reject several learners."""
        raise ConfigError(
            "CrossQ's networks normalise by the statistics of the whole batch, and those of "
            f"{ranks.world} learners' rows differ; use one learner, or SAC"
        )

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return noise, and whether to update actor and temperature."""
        turn = self.policy_turn(self.config.policy_interval_opt_steps)
        return {"noise": self.normal(2, rows, self.bounds.size), **turn}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update the critics by one step, and actor and temperature in some of the steps."""
        obs, next_obs, reward = self.updater.inputs(data)
        noise, alpha = data["noise"], self.temperature.alpha()
        with torch.no_grad():
            next_action, log_prob = self.sample(self.actor, next_obs, noise[0])
        # Q(s, a) and Q(s', a') in one pass, so that both share batch statistics.
        actions = torch.cat([self.scaled(data["action"]), next_action])
        both = self.values(self.learning_critics, joined(obs, next_obs), actions)
        q, next_q = both.chunk(2, dim=1)
        least = next_q.detach().amin(dim=0)
        target = reward + data["discount"] * (least - alpha * log_prob)
        loss, metrics = self.critic_loss(q, target, data.get("weight"))
        metrics |= {"alpha": alpha} | self.updater.minimize(loss, "critic")
        if "improve_policy" in data:
            metrics |= self.improve_policy(obs, noise[1], alpha)
        return metrics

    def improve_policy(self, obs: NetworkInput, noise: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        """Update the actor on the critics' values, and the temperature on the actor's entropy."""
        action, log_prob = self.sample(self.learning_actor, obs, noise)
        least = self.values(self.critics, obs, action).amin(dim=0)
        loss = (alpha * log_prob - least).mean()
        entropy = -log_prob.detach().mean()
        metrics = {"actor_loss": loss.detach(), "entropy": entropy}
        metrics |= self.updater.minimize(loss, "actor")
        self.temperature.improve(entropy)
        return metrics

    def sample(self, actor: nn.Module, obs: NetworkInput, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return an actor's actions for this noise, and their log densities."""
        return sample_action(self.updater(actor, obs), noise)
