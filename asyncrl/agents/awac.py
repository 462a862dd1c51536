"""Advantage-weighted actor-critic: evaluates the policy, and clones the good actions in the data.

Paper: Nair et al. (2020), AWAC: Accelerating Online Reinforcement Learning with Offline Datasets,
https://arxiv.org/abs/2006.09359

With policy pi, action values Q_1 to Q_n and their target networks Q', the critics learn the values
of the policy, and the policy clones the data's actions, the better ones with more weight:

    y    = r + discount * min over i of Q'_i(s', a')                a' ~ pi(.|s')
    J_Q  = mean of (Q_i(s, a) - y)^2
    A    = min over i of Q_i(s, a) - V(s)           V(s) = E of min over i of Q_i(s, a'), a' ~ pi
    J_pi = - mean of min(exp(A / temperature), max_weight) * log pi(a|s)

The policy never follows the gradient of the critics, so it stays near the data where they are
wrong. Online fine-tuning needs no change. IQL does not even evaluate the policy's actions.

Deviations from the paper, on purpose:

* Weights have an upper limit and are not normalised over the batch.
* Discrete actions: expectations over the policy are sums over all actions; nothing is sampled.
  Continuous actions: V(s) is the value of one sampled action.
* All losses of a batch are computed before any network changes.
* Continuous actions come from a Gaussian; they are clipped to the bounds, not squashed.
* One learning rate for all networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.cloning import (
    UnitGaussianHead,
    WeightedCloningAgent,
    WeightedCloningConfig,
    exp_weights,
    weighted_mean,
)
from asyncrl.agents.parts.critics import ChoiceValues
from asyncrl.agents.parts.networks import NetworkInput, pick_device
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Positive
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AWACConfig(WeightedCloningConfig):
    """Settings of advantage-weighted actor-critic; see `CloningConfig` for those of its policy."""

    temperature: Annotated[Positive, COMMON] = 1.0
    """Temperature of the advantage weights (the paper's lambda), in units of rewards: an advantage
    of this size multiplies an action's weight by e. With `normalize_reward`, start at 0.1. Much
    smaller values clone only the few actions that the critics overestimate most."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> AWACAgent:
        """Return the learner's agent."""
        return AWACAgent(self, spec, context, pick_device(self.device))


class AWACAgent(WeightedCloningAgent):
    """The part that learns, and acts as well."""

    config: AWACConfig

    def __init__(
        self, config: AWACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.noise = torch.Generator(device).manual_seed(context.seed)
        self.parts["noise"] = self.noise

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return the noise that continuous actions are sampled with."""
        if not isinstance(self.head, UnitGaussianHead):
            return {}
        shape = 2, rows, len(self.head.center)
        return {"noise": torch.randn(shape, generator=self.noise, device=self.device)}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update critics and actor by one step each."""
        config, weight = self.config, data.get("weight")
        obs, next_obs, reward = self.updater.inputs(data)
        action, noise = self.drawn(data["action"]), data.get("noise")
        outputs = self.outputs(obs)
        q = self.values(self.critics, obs, action)
        with torch.no_grad():
            next_value = self.value(self.targets, next_obs, self.outputs(next_obs), _row(noise, 0))
            target = reward + data["discount"] * next_value
            value = self.value(self.critics, obs, outputs, _row(noise, 1))
            advantage = q.amin(dim=0) - value
        critic_loss = weighted_mean((q - target).square(), weight)
        strength = exp_weights(advantage, config.temperature, config.max_weight)
        actor_loss = -(strength * self.log_prob(outputs, action)).mean()
        metrics = {
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "advantage_mean": advantage.mean(),
            "weight_mean": strength.mean(),
            "q_mean": q.detach().mean(),
            "q": q.detach(),
            "target": target,
        }
        metrics |= self.updater.minimize(critic_loss + actor_loss)
        self.target_network.soft_update()
        return metrics

    def value(
        self, critics: nn.Module, obs: NetworkInput, outputs: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Return V(s): E of min over i of Q_i(s, a), a ~ pi(.|s)."""
        if isinstance(self.head, UnitGaussianHead):
            assert noise is not None  # noqa: S101  # `opt` draws it
            return self.values(critics, obs, self.head.draw(outputs, noise)).amin(dim=0)
        assert isinstance(critics, ChoiceValues)  # noqa: S101  # as made above
        least = self.updater(critics.of_all, obs, dim=1).amin(dim=0)
        return (outputs.softmax(dim=1) * least).sum(dim=1)


def _row(noise: Tensor | None, index: int) -> Tensor | None:
    return None if noise is None else noise[index]
