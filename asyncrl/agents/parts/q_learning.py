"""What agents have in common that learn the value of each action, or its whole distribution.

Such an agent acts on the best value, follows itself with a target network, and steps down the slope
of one loss. Its own file says which network, which targets and which loss.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.exploration import EpsilonLadder, Exploration, Explorer
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    Perturbation,
    observation_reader,
)
from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.schedules import LearningRate
from asyncrl.agents.parts.torch_agent import (
    TorchAgent,
    TorchPolicy,
    buffer_copier,
    clip_gradients,
    flatten_parameters,
    seeded,
)
from asyncrl.agents.parts.torch_config import TorchConfig, pick_matmul
from asyncrl.agents.parts.updates import InParts, Updates
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.declared import Count, Positive, PositiveOrOff, Share, Widths
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, Columns, ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class QConfig(TorchConfig, ABC):
    """Settings that DQN and its descendants share."""

    hidden: Widths = (64, 64)
    """Units of each hidden layer; for images, of those behind the convolutions."""

    double: bool = True
    """The online network chooses the action whose value the target network tells."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""

    noisy: bool = False
    """Perturb the weights behind the encoder, anew for each act and each optimisation step, by as
    much as is learned. Explores by itself: `exploration` may be None then."""

    noisy_sigma: PositiveOrOff = 0.5
    """Noisy weights start with this spread, divided by the root of their layer's inputs."""

    learning_rate: LearningRate = 2e-3
    """Step size of Adam; only a schedule may come to 0."""

    adam_eps: Positive = 1e-8
    """Adam's epsilon: what keeps it from dividing by 0."""

    max_grad_norm: PositiveOrOff = 10.0
    """Gradients of a larger norm are scaled down to it; 0 leaves them all as they are."""

    tau: Share = 0.05
    """Share of the online network that enters the target network in each optimisation step; 0
    copies it as a whole, at intervals."""

    target_interval_opt_steps: Count = 200
    """Optimisation steps between two copies; only when `tau` is 0."""

    exploration: Exploration | None = field(default_factory=EpsilonLadder)
    """How actions other than the best one are tried in training. None leaves that to noisy layers
    alone."""

    can_accumulate: ClassVar[bool] = True

    @property
    def sigma(self) -> float | None:
        """Return the spread of noisy weights, None where there are none."""
        return self.noisy_sigma if self.noisy else None

    def check_shapes(self, network: MakeNetwork | None) -> None:
        """Refuse settings of the default network beside one of the user's own."""
        for name, part in (("dueling", "DuelingHead"), ("noisy", "NoisyLinear layers")):
            if network is not None and getattr(self, name):
                raise ConfigError(
                    f"agent.{name}=True shapes the default network and has no effect on "
                    f"agent.network; leave it off and build {part} into your network"
                )

    @abstractmethod
    def make_network(self, spec: EnvSpec) -> nn.Module:
        """Make the network, which answers observations with values (B, actions)."""

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return what normalisation needs, where it is asked for."""
        return self.norm_columns


class QPolicy(TorchPolicy):
    """The part that acts, on the values (B, actions) that its model answers with."""

    def __init__(
        self, config: QConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        with seeded(context.seed):
            network = config.make_network(spec)
        super().__init__(config.with_norms(network, spec.observation), device)
        self.read_obs = observation_reader(spec.observation)
        self.random = np.random.default_rng(context.seed)
        self.perturbation = Perturbation(network)
        self._explorer = _explorer(config.exploration, context, self.random, self.perturbation)

    def act(self, obs: Array) -> Act:
        """Choose the best action in each environment, or explore."""
        if not self.training:
            return Act(self._q(obs).argmax(axis=1))
        q = self._perturbed_q(obs) if self.perturbation.size else self._q(obs)
        self.env_steps += len(obs)
        action = self._explorer.choose(q, self.env_steps) if self._explorer else q.argmax(axis=1)
        return Act(action, self._extras(q, action))

    def record(self) -> Record:
        """Tell how much is explored at present."""
        return self._explorer.record(self.env_steps) if self._explorer else {}

    def _extras(self, q: Array, action: Array) -> Columns:
        """Return what is stored beside actions: nothing, unless a subclass does."""
        return {}

    def _q(self, obs: Array) -> Array:
        with torch.inference_mode():
            q: Array = (
                self.model(self.read_obs(torch.from_numpy(obs).to(self.device))).cpu().numpy()
            )
        return q

    def _perturbed_q(self, obs: Array) -> Array:
        """Return the values according to other weights in each environment."""
        self.perturbation.set(self.perturbation.draw(self.random, len(obs)).to(self.device))
        try:
            return self._q(obs)
        finally:
            self.perturbation.clear()


class QAgent(QPolicy, TorchAgent, ABC):
    """The part that learns, and acts as well; an algorithm adds `_learn`."""

    def __init__(
        self, config: QConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.net = self.model.network if isinstance(self.model, Normalized) else self.model
        self.target = copy.deepcopy(self.net)
        self._flat, self._gradient = flatten_parameters(self.net)
        self._flat_target, _ = flatten_parameters(self.target)
        self._copy_buffers = buffer_copier(self.net, self.target)
        self.optimizer = FusedAdam([self._flat], config.learning_rate, config.adam_eps)
        self.parts |= {"target": self.target, "optimizer": self.optimizer, "random": self.random}
        self._target_perturbation = Perturbation(self.target)
        self.draws = torch.Generator(device).manual_seed(context.seed)
        """Generator of what an update draws, which is a part of the state where it draws any."""
        if self.perturbation.size:
            self.parts["draws"] = self.draws
        self._tau, self._max_grad_norm = config.tau, config.max_grad_norm
        self._interval = config.target_interval_opt_steps
        self._matmul = pick_matmul(device, self.net)
        self._precision = config.precision_on(device)
        self._in_parts = InParts(config.accumulate)
        self._descend = config.uncompiled(self._step_down)
        self._updates = Updates(
            self._update, config, self.model, self.read_obs, device, learning=[self.model]
        )
        self.on_load.append(self._updates.forget)
        self._priorities: Tensor | None = None

    @abstractmethod
    def _learn(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and what to tell about it without gradients.

        Where there is a column `weight`, rows count by it. Of each row is told either `priority`,
        or the value `q` and the `target` whose distance is the priority.
        """

    def _draw(self, rows: int) -> dict[str, Tensor]:
        """Return what an update of so many rows draws: noise, and what a subclass adds.

        It is drawn before, since an update that has been recorded would repeat itself.
        """
        size = self.perturbation.size
        if not size:
            return {}
        # One noise for all rows: for the online network, and for the target network.
        normal = torch.randn((2, 1, size), generator=self.draws, device=self.device)
        return {"noise": self.perturbation.shape(normal)}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step towards the targets; tell loss, mean value, and norm if that is limited."""
        self.optimizer.follow(self.env_steps)
        with self._matmul():
            told = self._updates.step(batch, self._draw(len(batch["reward"])))
        told |= self.optimizer.tell("learning_rate")
        self._priorities = told.pop("priority", None)
        self.version = ModelVersion(self.version + 1)
        if not self._tau and self.version % self._interval == 0:
            # theta' <- theta
            self.target.load_state_dict(self.net.state_dict())
        return told

    def priorities(self) -> Array:
        """Return how wrong the agent was about each row of the newest batch."""
        if self._priorities is None:
            return self._updates.priorities()
        priorities: Array = self._priorities.cpu().numpy()
        return priorities

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""
        obs, next_obs, reward = self._updates.inputs(data)
        if self.perturbation.size:
            self.perturbation.set(data["noise"][0])
            self._target_perturbation.set(data["noise"][1])
        loss, told = self._learn(obs, next_obs, reward, data)
        told = {"loss": loss.detach()} | told | self._descend(loss)
        if self.perturbation.size:
            self.perturbation.clear()
            self._target_perturbation.clear()
        return told

    def _step_down(self, loss: Tensor) -> dict[str, Tensor]:
        """Step down the slope of the loss, and let the target network follow."""
        told = {}
        self._gradient.zero_()
        loss.backward()
        if self._max_grad_norm:
            told["grad_norm"] = clip_gradients([self._gradient], self._max_grad_norm)
        self.optimizer.descend()
        if self._tau:
            with torch.no_grad():
                # theta' <- theta' + tau * (theta - theta')
                self._flat_target.lerp_(self._flat, self._tau)
                self._copy_buffers()
        return told

    def _values(self, network: nn.Module, obs: NetworkInput) -> Tensor:
        """Return what a network answers, multiplied as precisely as the config says."""
        with self._precision():
            answer: Tensor = self._in_parts(network, obs)
        return answer.float()


def _explorer(
    exploration: Exploration | None,
    context: PolicyContext,
    random: np.random.Generator,
    perturbation: Perturbation,
) -> Explorer | None:
    if exploration is not None:
        return Explorer(exploration, context, random)
    if not perturbation.size:
        raise ConfigError(
            "agent.exploration=None leaves exploration to noisy layers, but the network has none; "
            "set agent.noisy=True, or an exploration such as EpsilonLadder"
        )
    return None
