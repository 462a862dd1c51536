"""Behaviour cloning: acts as the data does, whatever came of it.

    Pomerleau (1991), Efficient training of artificial neural networks for autonomous navigation,
    https://doi.org/10.1162/neco.1991.3.1.88

With policy pi, the loss is the negative logarithm of the probability of the data's actions,

    J_pi = - mean of log pi(a|s)

which for quantities, with a standard deviation that is the same in all states, is the squared error
of the mean up to scale. What AWAC and IQL add to it are weights: compare them with this.

Rewards are not looked at. Normalisation of observations learns from the data.

Deviations from the paper, on purpose:

* It steers by the squared error of a hill of outputs, one for each direction. Here choices have a
  softmax, quantities a Gaussian and are clipped to the bounds, and likelihood is the aim.
* It makes more data of each image by moving the road in it. Here the data is taken as it is.
* Adam stands for plain gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents.parts.cloning import CloningAgent, CloningConfig, CloningPolicy
from asyncrl.agents.parts.torch_agent import pick_device
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig(CloningConfig):
    """Settings of behaviour cloning; see `CloningConfig` for what it shares with AWAC and IQL."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> BCAgent:
        """Make the learner's agent."""
        return BCAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> BCPolicy:
        """Make an actor's policy, which computes on a CPU."""
        return BCPolicy(self, spec, context, torch.device("cpu"))


class BCPolicy(CloningPolicy):
    """The part that acts."""


class BCAgent(BCPolicy, CloningAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: BCConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.equip(config)

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one step towards the actions of a batch."""
        obs, _, _ = self.updater.inputs(data)
        outputs = self.outputs(obs)
        loss = -self.head.log_prob(outputs, self.drawn(data["action"])).mean()
        entropy = self.head.entropy(outputs.detach()).detach().mean()
        return {"loss": loss.detach(), "entropy": entropy} | self.updater.down(loss)
