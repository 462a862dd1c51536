"""Implicit Q-learning: learns from the best actions in the data without evaluating any other.

Paper: Kostrikov et al. (2021), Offline Reinforcement Learning with Implicit Q-Learning,
https://arxiv.org/abs/2110.06169

With policy pi, action values Q_1 to Q_n, target networks Q' and state value V: V is an upper
expectile of the action values in the data, action values bootstrap from V of the next state, and
the policy clones the data's actions, the better ones with more weight:

    J_V  = mean of |expectile - 1(u < 0)| * u^2        u = min over i of Q'_i(s, a) - V(s)
    y    = r + discount * V(s')
    J_Q  = mean of (Q_i(s, a) - y)^2
    J_pi = - mean of min(exp(u / temperature), max_weight) * log pi(a|s)

Deviations from the paper, on purpose:

* `temperature` is one over the paper's beta. Scale it with the size of rewards, or use
  `normalize_reward`, which removes their scale.
* All losses of a batch are computed before any network changes.
* Continuous actions come from a Gaussian; they are clipped to the bounds, not squashed.
* The learning rate is constant unless a schedule is given, and there is no dropout.
* Discrete actions: the policy is a softmax, and critics output the values of all actions at once.
* n-step returns are used as the replay provides them. They are those of the data's behaviour, so
  values lie between it and the best: use 1 step unless the data is good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.cloning import (
    WeightedCloningAgent,
    WeightedCloningConfig,
    exp_weights,
    weighted_mean,
)
from asyncrl.agents.parts.critics import make_state_value
from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, pick_device
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Positive, Within
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class IQLConfig(WeightedCloningConfig):
    """Settings of implicit Q-learning; `CloningConfig` has those of its policy."""

    value_network: MakeNetwork | None = None
    """Factory of a custom network for state values: observations -> (B, 1). None uses the default
    one."""

    expectile: Annotated[float, Within("(0, 1)"), COMMON] = 0.7
    """Expectile of the action values in the data. 0.5 values the average behaviour in the data,
    close to 1 the best of it. 0.9 pays where good episodes must be pieced together from several."""

    temperature: Annotated[Positive, COMMON] = 1 / 3
    """Temperature of the advantage weights, in units of rewards: an advantage of this size
    multiplies an action's weight by e. With `normalize_reward`, start at 0.05."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> IQLAgent:
        """Return the learner's agent."""
        return IQLAgent(self, spec, context, pick_device(self.device))


class IQLAgent(WeightedCloningAgent):
    """The part that learns, and acts as well."""

    config: IQLConfig

    def make_others(self, spec: EnvSpec) -> dict[str, nn.Module]:
        """Return the network of state values."""
        self.value = make_state_value(spec, self.config.hidden, self.config.value_network)
        return {"value": self.value}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update state values, critics and actor by one step each."""
        config, weight = self.config, data.get("weight")
        obs, next_obs, reward = self.updater.inputs(data)
        action = self.drawn(data["action"])
        value = self.value_of(obs)
        with torch.no_grad():
            believed = self.values(self.targets, obs, action).amin(dim=0)
            target = reward + data["discount"] * self.value_of(next_obs)
        u = believed - value
        value_loss = weighted_mean(expectile_loss(u, config.expectile), weight)
        q = self.values(self.critics, obs, action)
        critic_loss = weighted_mean((q - target).square(), weight)
        strength = exp_weights(u.detach(), config.temperature, config.max_weight)
        actor_loss = -(strength * self.log_prob(self.outputs(obs), action)).mean()
        metrics = {
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "value_loss": value_loss.detach(),
            "advantage_mean": u.detach().mean(),
            "weight_mean": strength.mean(),
            "q_mean": q.detach().mean(),
            "q": q.detach(),
            "target": target,
        }
        metrics |= self.updater.minimize(value_loss + critic_loss + actor_loss)
        self.target_network.soft_update()
        return metrics

    def value_of(self, obs: NetworkInput) -> Tensor:
        """Return V(s)."""
        value: Tensor = self.updater(self.value, obs)
        return value.squeeze(1)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Return |expectile - 1(u < 0)| * u^2, row by row."""
    return torch.where(error < 0, 1.0 - expectile, expectile) * error.square()
