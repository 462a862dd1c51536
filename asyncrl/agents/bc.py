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

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents.parts.cloning import CloningConfig, CloningPolicy, Descent
from asyncrl.agents.parts.torch_agent import TorchAgent, pick_device, use_threads
from asyncrl.agents.parts.torch_config import pick_matmul
from asyncrl.agents.parts.updater import Updates
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Columns, ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig(CloningConfig):
    """Settings of behaviour cloning; see `CloningConfig` for what it shares with AWAC and IQL."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> BCAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return BCAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> BCPolicy:
        """Make an actor's policy, which computes on a CPU."""
        return BCPolicy(self, spec, context, torch.device("cpu"))


class BCPolicy(CloningPolicy):
    """The part that acts."""


class BCAgent(BCPolicy, TorchAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: BCConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self._descent = Descent([self.actor], config)
        self._matmul = pick_matmul(device, self.actor, hidden=config.hidden)
        self._descend = config.uncompiled(self._descent)
        self._updates = Updates(
            self._update, config, self.model, self.read_obs, device, learning=[self.model]
        )
        self.on_load.append(self._updates.forget)
        self.parts |= {"optimizer": self._descent.adam, "random": self.random}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step towards the actions of a batch."""
        self._descent.adam.follow(self.env_steps)
        with self._matmul():
            told = self._updates.step(batch)
        self.version = ModelVersion(self.version + 1)
        return told | self._descent.adam.tell("learning_rate")

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""
        obs, _, _ = self._updates.inputs(data)
        outputs = self.outputs(obs)
        loss = -self.head.log_prob(outputs, self.drawn(data["action"])).mean()
        entropy = self.head.entropy(outputs.detach()).detach().mean()
        told = {"loss": loss.detach(), "entropy": entropy}
        self._descend(loss)
        return told
