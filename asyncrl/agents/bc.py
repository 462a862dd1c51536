"""Behaviour cloning: imitates the data, whatever its rewards.

Paper: Pomerleau (1991), Efficient training of artificial neural networks for autonomous
navigation, https://doi.org/10.1162/neco.1991.3.1.88

With policy pi, the loss is the negative log-likelihood of the data's actions,

    J_pi = - mean of log pi(a|s)

For continuous actions with a state-independent standard deviation, this is the squared error of the
mean up to scale. AWAC and IQL add weights to it: use BC as their baseline.

Rewards are not used. Normalisation of observations learns from the data.

Deviations from the paper, on purpose:

* The paper trains a hill of outputs, one for each direction, by squared error. Here discrete
  actions use a softmax, continuous ones a clipped Gaussian, and the objective is likelihood.
* The paper augments each image by moving the road in it. Here the data is used unchanged.
* Adam replaces plain gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents.parts.cloning import CloningAgent, CloningConfig
from asyncrl.agents.parts.networks import pick_device
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig(CloningConfig):
    """Settings of behaviour cloning; `CloningConfig` has those it shares with AWAC and IQL."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> BCAgent:
        """Return the learner's agent."""
        return BCAgent(self, spec, context, pick_device(self.device))


class BCAgent(CloningAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: BCConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.equip()

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one step towards the actions of a batch."""
        obs, _, _ = self.updater.inputs(data)
        outputs = self.outputs(obs)
        loss = -self.log_prob(outputs, self.drawn(data["action"])).mean()
        entropy = self.head.entropy(outputs.detach()).detach().mean()
        return {"loss": loss.detach(), "entropy": entropy} | self.updater.minimize(loss)
