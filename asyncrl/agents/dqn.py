"""DQN: learns the value of each action, acts on the best one, explores with some of the rest.

Papers:
    Mnih et al. (2015), Human-level control through deep reinforcement learning: replay, target
    network. van Hasselt et al. (2016), Deep reinforcement learning with double Q-learning. Wang et
    al. (2016), Dueling network architectures. Horgan et al. (2018), Distributed prioritized
    experience replay (Ape-X): many actors with a ladder of exploration rates, n-step returns.

What differs on purpose:
    Adam instead of RMSprop. Errors are not clipped unless the loss is Huber's. The target network
    follows slowly (tau) unless told to be copied at intervals. Rewards are not clipped: that is an
    environment wrapper's business. The discount and the number of steps belong to the replay
    buffer, which hands over `reward` and `discount` ready for use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agent import Act, PolicyContext
from asyncrl.agents._checks import check_not_negative, check_positive, check_probability
from asyncrl.agents.exploration import EpsilonLadder, Exploration, Explorer
from asyncrl.agents.fused_adam import FusedAdam
from asyncrl.agents.networks import NetworkInput, no_observations, observation_reader, q_network
from asyncrl.agents.normalize import Normalized
from asyncrl.agents.torch_agent import (
    TorchAgent,
    TorchPolicy,
    flatten_parameters,
    pick_device,
    seeded,
    use_threads,
)
from asyncrl.agents.torch_config import TorchConfig
from asyncrl.agents.updates import Updates
from asyncrl.env import DiscreteSpec, EnvSpec
from asyncrl.errors import ConfigError
from asyncrl.recorder import Record
from asyncrl.segment import ColumnSpec
from asyncrl.types import Array, Columns, ModelVersion, Params

__all__ = ["DQNAgent", "DQNConfig", "DQNPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(TorchConfig):
    """Double DQN with a ladder of exploration rates, unless told otherwise."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer; for images, of those behind the convolutions."""

    network: Callable[[EnvSpec], nn.Module] | None = None
    """Builds a network of your own in place of the default one: from a batch of float observations
    (images within [0, 1]), or a dict of such by field name, as "camera/left", to (batch, n_actions)
    values. Must be importable, or cloudpickle-able."""

    double: bool = True
    """The online network chooses the action whose value the target network tells."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""

    learning_rate: float = 2e-3
    """Step size of Adam."""

    adam_eps: float = 1e-8
    """Adam's epsilon: what keeps it from dividing by 0."""

    loss: Literal["huber", "mse"] = "mse"
    """Squared error, or Huber's: half of that, with slope 1 where errors exceed 1. Huber's suits
    clipped rewards, and is slow where returns are in the tens or more."""

    max_grad_norm: float = 10.0
    """Gradients of a larger norm are scaled down to it; 0 leaves them all as they are."""

    tau: float = 0.05
    """Share of the online network that enters the target network in each optimisation step; 0
    copies it as a whole, at intervals."""

    target_interval_opt_steps: int = 200
    """Optimisation steps between two copies; only when `tau` is 0."""

    exploration: Exploration = field(default_factory=EpsilonLadder)
    """How actions other than the best one are tried in training."""

    actor_priorities: bool = False
    """Let actors store the values of the action taken and of the best one beside each row, of
    which a prioritized replay computes first priorities."""

    def __post_init__(self) -> None:
        TorchConfig.__post_init__(self)
        if any(units < 1 for units in self.hidden):
            raise ConfigError(f"agent.hidden needs at least 1 unit a layer, got {self.hidden}")
        if self.loss not in {"huber", "mse"}:
            raise ConfigError(f"agent.loss must be huber or mse, got {self.loss!r}")
        if self.network is not None and self.dueling:
            raise ConfigError(
                "agent.dueling=True shapes the default network and has no effect on agent.network; "
                "leave it off and build a DuelingHead into your network"
            )
        check_positive("learning_rate", self.learning_rate)
        check_positive("adam_eps", self.adam_eps)
        check_not_negative("max_grad_norm", self.max_grad_norm)
        check_probability("tau", self.tau)
        if self.target_interval_opt_steps < 1:
            raise ConfigError(
                "agent.target_interval_opt_steps must be at least 1, got "
                f"{self.target_interval_opt_steps}"
            )

    def build(self, spec: EnvSpec, context: PolicyContext) -> DQNAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return DQNAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> DQNPolicy:
        """Make an actor's policy, which computes on a CPU."""
        return DQNPolicy(self, spec, context, torch.device("cpu"))

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return what first priorities and normalisation need, where they are asked for."""
        values = ("q_taken", "q_best") if self.actor_priorities else ()
        return (*(ColumnSpec(name, "float32") for name in values), *self.norm_columns)


class DQNPolicy(TorchPolicy):
    """The part that acts."""

    def __init__(
        self, config: DQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        network = _build_network(config, spec, context.seed)
        super().__init__(config.with_norms(network, spec.observation), device)
        self.read_obs = observation_reader(spec.observation)
        self.config = config
        self.random = np.random.default_rng(context.seed)
        self._explorer = Explorer(config.exploration, context, self.random)

    def act(self, obs: Array) -> Act:
        """Choose the best action in each environment, or explore."""
        with torch.inference_mode():
            q = self.model(self.read_obs(torch.from_numpy(obs).to(self.device))).cpu().numpy()
        if not self.training:
            return Act(q.argmax(axis=1))
        self.env_steps += len(obs)
        action = self._explorer.choose(q, self.env_steps)
        if not self.config.actor_priorities:
            return Act(action)
        return Act(action, {"q_taken": q[np.arange(len(q)), action], "q_best": q.max(axis=1)})

    def record(self) -> Record:
        """Tell how much is explored at present."""
        return self._explorer.record(self.env_steps)


class DQNAgent(DQNPolicy, TorchAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: DQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self._net = self.model.network if isinstance(self.model, Normalized) else self.model
        self.target = copy.deepcopy(self._net)
        self._flat, self._gradient = flatten_parameters(self._net)
        self._flat_target, _ = flatten_parameters(self.target)
        self.optimizer = FusedAdam([self._flat], config.learning_rate, config.adam_eps)
        self.parts |= {"target": self.target, "optimizer": self.optimizer, "random": self.random}
        self._loss = functional.smooth_l1_loss if config.loss == "huber" else functional.mse_loss
        self._precision = config.precision_on(device)
        self._descend = config.uncompiled(self._step_down)
        self._updates = Updates(self._update, config, self.model, self.read_obs, device)

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step towards the targets; tell loss, mean value, and norm if that is limited."""
        told = self._updates.step(batch)
        self.version = ModelVersion(self.version + 1)
        if not self.config.tau and self.version % self.config.target_interval_opt_steps == 0:
            # theta' <- theta
            self.target.load_state_dict(self._net.state_dict())
        return told

    def priorities(self) -> Array:
        """Return the absolute error of each row of the newest batch."""
        return self._updates.priorities()

    def load_state(self, state: Params) -> None:
        """Go on from `state`, or raise and change nothing."""
        super().load_state(state)
        self._updates.forget()

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""
        obs, next_obs, reward = self._updates.inputs(data)
        target = self._targets(next_obs, reward, data["discount"])
        # Q(s, a) of the actions that were taken.
        q = self._values(self._net, obs).gather(1, data["action"][:, None]).squeeze(1)
        # L = mean over the batch of huber(Q(s, a) - y), or of (Q(s, a) - y)^2
        if "weight" in data:
            loss = (data["weight"] * self._loss(q, target, reduction="none")).mean()
        else:
            loss = self._loss(q, target)
        told = {"loss": loss.detach(), "q_mean": q.detach().mean(), "q": q.detach()}
        return told | {"target": target} | self._descend(loss)

    def _step_down(self, loss: Tensor) -> dict[str, Tensor]:
        """Step down the slope of the loss, and let the target network follow."""
        told = {}
        self._gradient.zero_()
        loss.backward()
        if self.config.max_grad_norm:
            # g <- g * min(1, max_grad_norm / |g|)
            told["grad_norm"] = norm = torch.linalg.vector_norm(self._gradient)
            self._gradient.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.optimizer.descend()
        if self.config.tau:
            with torch.no_grad():
                # theta' <- theta' + tau * (theta - theta')
                self._flat_target.lerp_(self._flat, self.config.tau)
        return told

    @torch.no_grad()
    def _targets(self, next_obs: NetworkInput, reward: Tensor, discount: Tensor) -> Tensor:
        """Return y = r + discount * Q'(s', a*), where s' may lie n steps ahead.

        `r` is the n-step return, `discount` is gamma^n, or 0 where the episode terminated.
        """
        next_q = self._values(self.target, next_obs)
        # Double DQN: a* = argmax of Q(s', a) online. Plain: a* = argmax of Q'(s', a).
        choosing_q = self._values(self._net, next_obs) if self.config.double else next_q
        best = choosing_q.argmax(dim=1, keepdim=True)
        value: Tensor = next_q.gather(1, best).squeeze(1)
        return reward + discount * value

    def _values(self, network: nn.Module, obs: NetworkInput) -> Tensor:
        with self._precision():
            q: Tensor = network(obs)
        return q.float()


def _build_network(config: DQNConfig, spec: EnvSpec, seed: int) -> nn.Module:
    if not isinstance(spec.action, DiscreteSpec):
        kind = "several choices at once" if spec.action.categorical else "continuous"
        raise ConfigError(
            f"DQN chooses among a number of actions, but these are {kind}, of shape "
            f"{spec.action.shape}; use {'PPO' if spec.action.categorical else 'SAC'}"
        )
    with seeded(seed):
        if config.network is None:
            return q_network(spec.observation, config.hidden, spec.action.n, dueling=config.dueling)
        network = config.network(spec)
    with torch.no_grad():
        answer = network.eval()(no_observations(spec.observation, 2))
    if answer.shape != (2, spec.action.n):
        raise ConfigError(
            f"agent.network answers 2 observations with an array of shape {tuple(answer.shape)}; "
            f"expected {(2, spec.action.n)}, a value for each action"
        )
    return network.train()
