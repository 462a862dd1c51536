"""IMPALA: an actor-critic that learns at full speed from experience of slightly older policies.

Paper: Espeholt et al. (2018), IMPALA: Scalable distributed deep-RL with importance weighted
actor-learner architectures, https://arxiv.org/abs/1802.01561. One optimisation step on each batch
of trajectories; V-trace corrects for the lag between acting and learning policy.

With policy pi, acting policy mu, values V and H the entropy of a policy:

    rho_t   = pi(a_t|x_t) / mu(a_t|x_t)
    delta_t = min(clip_rho, rho_t) * (r_t + discount * V(x_t+1) - V(x_t))
    v_t     = V(x_t) + delta_t + discount * lambda * min(clip_c, rho_t) * (v_t+1 - V(x_t+1))
    A_t     = min(clip_pg_rho, rho_t) * (r_t + discount * v_t+1 - V(x_t))
    L       = mean of - A_t * log pi(a_t|x_t) + value_weight * (v_t - V(x_t))^2
              - entropy_weight * H(pi(.|x_t))

`vtrace` in `parts/policy_gradient.py` computes v and A.

Deviations, on purpose:

* Losses are means over transitions instead of sums, so that settings do not depend on the batch
  size.
* Adam is available beside RMSprop.
* Rewards are not clipped by default. Environments bring their own wrappers.
* The network gets neither the last action nor the last reward.
* With `lambda_` below 1, A uses v_t+1 rather than a mixture of it and V: on-policy this is not
  generalized advantage estimation; PPO's V-trace is.

The memory at a trajectory's first row is the one that its actor had there, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import LOG_PROB
from asyncrl.agents.parts.networks import pick_device
from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam, RMSprop
from asyncrl.agents.parts.policy_gradient import (
    Activation,
    TrajectoryAgent,
    TrajectoryBatch,
    TrajectoryConfig,
    read_columns,
    vtrace,
)
from asyncrl.agents.parts.schedules import Rate
from asyncrl.agents.parts.torch_agent import learning_parameters
from asyncrl.agents.parts.updater import Updater
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import (
    COMMON,
    Positive,
    PositiveOrOff,
    Share,
)
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import MEMORY

Optimizer = Literal["adam", "rmsprop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAConfig(TrajectoryConfig):
    """V-trace actor-critic with one network; by default without memory."""

    activation: Activation = "relu"
    """Activation after each hidden layer."""

    optimizer: Optimizer = "adam"
    """Optimizer of all parameters."""

    optimizer_eps: Positive = 1e-5
    """Epsilon in the optimizer's denominator."""

    rmsprop_decay: Share = 0.99
    """Decay of RMSprop's running mean of squared gradients."""

    entropy_weight: Annotated[Rate, COMMON] = 0.01
    """Weight of the entropy bonus, which keeps the policy from becoming deterministic early."""

    lambda_: Share = 1.0
    """Lambda of V-trace, the weight of later corrections. Less than 1 trades variance for bias."""

    clip_pg_rho: Positive = 1.0
    """Clip of the importance weight of an advantage in the policy gradient."""

    normalize_advantages: bool = False
    """Normalise the advantages of each batch to mean 0 and standard deviation 1."""

    reward_clip: PositiveOrOff = 0.0
    """Clip rewards to this magnitude, after any normalisation. 0 disables."""

    def __post_init__(self) -> None:
        TrajectoryConfig.__post_init__(self)
        if self.clip_c > self.clip_rho:
            raise ConfigError(
                f"agent.clip_c must be no larger than agent.clip_rho={self.clip_rho}, got "
                f"{self.clip_c}"
            )

    def build(self, spec: EnvSpec, context: PolicyContext) -> IMPALAAgent:
        """Return the learner's agent."""
        return IMPALAAgent(self, spec, context, pick_device(self.device))


class IMPALAAgent(TrajectoryAgent):
    """The part that learns, and acts as well."""

    algorithm = "IMPALA"
    config: IMPALAConfig

    def __init__(
        self, config: IMPALAConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.optimizer = _optimizer(config, learning_parameters(self.net))
        self.updater = Updater(
            self,
            config,
            {"": self.optimizer},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model],
            columns=read_columns(self.net),
            hidden=config.hidden if config.network is None else (),
        )
        self.parts["optimizer"] = self.optimizer

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one step on trajectories; return losses, entropy and how far off-policy they are."""
        obs, reward = self.updater.trajectories(data)
        if self.config.reward_clip:
            reward = reward.clamp(-self.config.reward_clip, self.config.reward_clip)
        mask = data["mask"]
        nothing = reward.new_zeros(len(reward), 0)
        played = TrajectoryBatch(obs, mask, data.get(MEMORY, nothing))
        outputs, values = self.updater(self.net.unroll, obs, played.memory, played.begins)
        outputs = outputs[:, :-1]
        log_prob = self.net.head.log_prob(outputs, data[self.net.head.sampler.column])
        log_rhos = log_prob.detach() - data[LOG_PROB]
        config = self.config
        rows = reward, data["discount"], mask, values.detach()
        targets, advantages = vtrace(
            log_rhos,
            *rows,
            lambda_=config.lambda_,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            clip_pg_rho=config.clip_pg_rho,
        )
        if config.normalize_advantages:
            std, mean = self.updater.std_mean(advantages[mask])
            advantages = (advantages - mean) / (std + 1e-8)
        policy_loss = -_mean(advantages * log_prob, mask)
        value_loss = _mean((targets - values[:, :-1]).square(), mask)
        entropy = _mean(self.net.head.entropy(outputs), mask)
        loss = policy_loss + config.value_weight * value_loss - data["entropy_weight"] * entropy
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "entropy_weight": data["entropy_weight"],
            "rho_mean": _mean(log_rhos.exp(), mask),
            "value_mean": _mean(values[:, :-1], mask),
        }
        return {name: value.detach() for name, value in metrics.items()} | self.updater.minimize(
            loss
        )


def _optimizer(config: IMPALAConfig, params: Iterable[nn.Parameter]) -> FastOptimizer:
    rate, eps = config.learning_rate, config.optimizer_eps
    if config.optimizer == "adam":
        return FusedAdam(params, rate, eps)
    return RMSprop(params, rate, config.rmsprop_decay, eps)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the rows that are transitions."""
    return torch.where(mask, values, 0.0).sum() / mask.sum()
