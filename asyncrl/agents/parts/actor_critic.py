"""What agents with an actor, critics and bounded actions share: settings, acting, updating."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from asyncrl.agents.parts.inference import LocalInference
from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, encoded_mlp, observation_reader
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.schedules import LearningRate
from asyncrl.agents.parts.torch_agent import TorchPolicy, learning_parameters
from asyncrl.agents.parts.torch_config import Acceleration, TorchConfig
from asyncrl.agents.parts.updater import TargetNetwork, Updater, UpdatingAgent
from asyncrl.agents.parts.user_networks import own_network
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, PositiveOrOff, Widths
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import OBS, OUTPUTS, Inference, observation_input
from asyncrl.core.types import Array, BoolArray


class Bounds:
    """Bounds of continuous actions of any shape, and the conversion between them and [-1, 1]."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig) -> None:
        """Take the bounds of the action space; raise if the config's algorithm cannot use it."""
        box = _checked_box(spec, type(config).__name__.removesuffix("Config"))
        self.shape, self.dtype = box.shape, box.dtype
        self.size = math.prod(box.shape)
        """Number of action dimensions."""
        self._low, self._high = box.low.ravel(), box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._center = ((high + low) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def actions(self, unit: Array) -> Array:
        """Convert (B, size) in [-1, 1] to the environment's actions (B, *shape)."""
        action = (self._center + self._half * unit).astype(self.dtype)
        # clipped because rounding may exceed the bounds
        action = action.clip(self._low, self._high)
        return action.reshape(len(unit), *self.shape)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the centers of the intervals and half their widths, both (size,)."""
        return torch.from_numpy(self._center).to(device), torch.from_numpy(self._half).to(device)


class LastingNoise:
    """Correlated standard normal noise: an Ornstein-Uhlenbeck process.

    At every step the noise is standard normal; samples `k` steps apart in one episode have
    correlation exp(-k / correlation_env_steps). With 0 they are independent.
    """

    def __init__(self, correlation_env_steps: float, random: np.random.Generator) -> None:
        self._keep = math.exp(-1.0 / correlation_env_steps) if correlation_env_steps else 0.0
        self._random = random
        self._last = np.zeros((0, 0), np.float32)
        self._begins = np.zeros(0, np.bool_)

    def begin(self, where: BoolArray) -> None:
        """Restart the noise of these rows: an episode begins there.

        A resumed run begins with new episodes, so it need not save the noise.
        """
        if self._keep:
            self._begins = where | self._begins if len(where) == len(self._begins) else where

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return float32 numbers of N(0, 1)."""
        fresh = self._random.standard_normal(shape, np.float32)
        if not self._keep:
            return fresh
        if self._last.shape != shape:
            self._last = fresh
        else:
            # rho x + sqrt(1 - rho^2) N(0, 1) is standard normal if x is
            spread = math.sqrt(1.0 - self._keep**2)
            lasting = np.float32(self._keep) * self._last + np.float32(spread) * fresh
            begins = self._begins[:, None] if len(self._begins) == len(fresh) else np.False_
            self._last = np.where(begins, fresh, lasting)
        self._begins = np.zeros(len(fresh), np.bool_)
        return self._last

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return samples that are uniform in [-1, 1]."""
        if not self._keep:
            return self._random.uniform(-1.0, 1.0, shape)
        # Phi(x) of a standard normal x is uniform in [0, 1], and 2 Phi(x) - 1 = erf(x / sqrt 2).
        steady: Array = torch.erf(torch.from_numpy(self.normal(shape)) / math.sqrt(2.0)).numpy()
        return steady


def _checked_box(spec: EnvSpec, algorithm: str) -> BoxSpec:
    box = spec.action
    if not isinstance(box, BoxSpec):
        raise ConfigError(
            f"{algorithm} needs continuous actions, but these are {box.n} discrete ones; use DQN, "
            "or give another --env"
        )
    if np.dtype(box.dtype).kind != "f":
        raise ConfigError(
            f"{algorithm} needs actions of a float dtype, but these are "
            f"{box.dtype}{(', several choices at once; use PPO' if box.categorical else '')}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = box.high.astype(np.float32) - box.low.astype(np.float32)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            f"{algorithm} scales actions between bounds, which must be finite and different, but "
            f"these are low={box.low.tolist()}, high={box.high.tolist()}; set bounds of the action "
            "space in the environment's factory"
        )
    return box


_LONGEST_INTERVAL_IN_GRAPHS = 3
"""Capture starts after this number of steps, and everything that is captured must have run
before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticConfig(TorchConfig):
    """Settings of agents with an actor, critics and bounded actions, whatever their equations."""

    hidden: Annotated[Widths, COMMON] = (256, 256)
    """Units of each hidden layer of the actor and of each critic."""

    n_critics: Count = 2
    """Number of critics. The minimum of their values is used."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor. None uses the default one."""

    critic_network: MakeNetwork | None = None
    """Factory of a custom critic, called `n_critics` times: float observations (B, ...), images
    within [0, 1], or a dict of them by field name, and actions (B, action dimensions) scaled to
    [-1, 1] -> (B, 1) or (B,). Must be importable or cloudpickle-able. None uses the default one."""

    actor_learning_rate: Annotated[LearningRate, COMMON] = 3e-4
    """Learning rate of the actor's Adam."""

    critic_learning_rate: Annotated[LearningRate, COMMON] = 1e-3
    """Learning rate of the critics' Adam."""

    random_env_steps: Natural = 1000
    """Initial environment steps of the whole run with uniformly random actions."""

    noise_correlation_env_steps: PositiveOrOff = 0.0
    """Correlation time of the exploration noise, and of random actions, in steps of one
    environment. 0 samples independent noise in each step. Where one step changes little, as in
    MountainCarContinuous, only correlated noise explores."""

    max_grad_norm: PositiveOrOff = 0.0
    """Maximum gradient norm, of the actor and of the critics separately. Larger gradients are
    scaled down to it; 0 disables clipping."""


def check_policy_interval(opt_steps: int, accelerate: Acceleration) -> None:
    """Raise for intervals between policy updates that cannot be captured."""
    if accelerate == "graphs" and opt_steps > _LONGEST_INTERVAL_IN_GRAPHS:
        raise ConfigError(
            "agent.accelerate='graphs' needs agent.policy_interval_opt_steps of at most "
            f"{_LONGEST_INTERVAL_IN_GRAPHS}, got {opt_steps}; set agent.accelerate to compile or "
            "off"
        )


def make_actor(
    spec: EnvSpec, hidden: tuple[int, ...], n_outputs: int, own: MakeNetwork | None
) -> nn.Module:
    """Return the default actor or a custom one, whose output is checked."""
    if own is None:
        return encoded_mlp(spec.observation, hidden, n_outputs)
    return own_network("actor_network", own, spec, [(2, n_outputs)])


class BoundedPolicy(TorchPolicy, ABC):
    """Acts uniformly at random for the first steps of a run, then as a subclass chooses.

    Its hook is `choose(answers)`.
    """

    squashed: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        bounds: Bounds,
        config: ActorCriticConfig,
        spec: EnvSpec,
        context: PolicyContext,
        device: torch.device,
    ) -> None:
        super().__init__(config.with_norms(network, spec.observation), device)
        self.actor = network
        """The model without normalisation."""
        self.bounds = bounds
        self.read_obs = observation_reader(spec.observation)
        self.random = np.random.default_rng(context.seed)
        self.noise = LastingNoise(config.noise_correlation_env_steps, self.random)
        self.__random_env_steps = config.random_env_steps
        self.inference: Inference = LocalInference(self.compute, device)
        self.inference_inputs = observation_input(spec)

    def act(self, obs: Array) -> Act:
        """Choose actions within the bounds."""
        if self.training and self.env_steps < self.__random_env_steps:
            unit = self.noise.uniform((len(obs), self.bounds.size))
        else:
            unit = self.choose(self.inference({OBS: obs})[OUTPUTS])
        if self.training:
            self.env_steps += len(obs)
        return Act(self.bounds.actions(unit))

    def compute(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's outputs for observations on the device."""
        return {OUTPUTS: self.model(self.read_obs(inputs[OBS]))}

    def forget(self, where: BoolArray) -> None:
        """Restart the noise where an episode begins; evaluations use none."""
        if self.training:
            self.noise.begin(where)

    @abstractmethod
    def choose(self, answers: Array) -> Array:
        """Return actions (B, size) in [-1, 1] for the model's outputs."""


class ActorCritic(BoundedPolicy, UpdatingAgent):
    """The part that learns, and acts as well.

    A subclass is built as a policy, then calls `equip`. Hooks:

        update(data)    the equations; required
        draw(rows)      the random numbers of an update, from `normal`

    The equations can use `actor` and `critics`, which process batches through `values` or
    `updater(network, ...)`; `critic_loss`; `scaled` actions; `updater.minimize(loss, "actor")`.
    """

    switches_modes: ClassVar[bool] = True
    """Whether an update runs with actor and critics in training mode."""

    def equip(
        self,
        config: ActorCriticConfig,
        critics: nn.Module,
        targets: Sequence[TargetNetwork],
        seed: int,
    ) -> None:
        """Set up the parts of an actor-critic update; `targets` are target networks."""
        device = self.device
        self.critics = critics.to(device).eval()
        self.actor_adam = FusedAdam(learning_parameters(self.actor), config.actor_learning_rate)
        self.critic_adam = FusedAdam(learning_parameters(critics), config.critic_learning_rate)
        self.noise_generator = torch.Generator(device).manual_seed(seed)
        self.center, self.half_width = self.bounds.tensors(device)
        self.__yes = torch.zeros(1, device=device)
        standard = config.actor_network is None and config.critic_network is None
        self.updater = Updater(
            self,
            config,
            {"actor": self.actor_adam, "critic": self.critic_adam},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model, self.critics],
            targets=targets,
            switch_modes=self.switches_modes,
            hidden=config.hidden if standard else (),
        )
        self.parts |= {
            "critics": self.critics,
            "actor_adam": self.actor_adam,
            "critic_adam": self.critic_adam,
            "noise": self.noise_generator,
            "random": self.random,
        }

    def priorities(self) -> Array:
        """Return each row's absolute TD error in the last batch, averaged over the critics."""
        return self.updater.priorities()

    def normal(self, *shape: int) -> Tensor:
        """Sample from N(0, 1)."""
        return torch.randn(shape, generator=self.noise_generator, device=self.device)

    def policy_turn(self, interval_opt_steps: int) -> dict[str, Tensor]:
        """Return a column whose presence says whether this update improves the policy.

        The columns of a batch distinguish captured and compiled variants of an update.
        """
        turn = self.version % interval_opt_steps == 0
        return {"improve_policy": self.__yes} if turn else {}

    def scaled(self, action: Tensor) -> Tensor:
        """Return a batch's actions as networks see them: (B, size) in [-1, 1]."""
        return (action.float().reshape(len(action), -1) - self.center) / self.half_width

    def values(self, critics: Callable[..., Tensor], obs: NetworkInput, action: Tensor) -> Tensor:
        """Return values (critics, B)."""
        return self.updater(critics, obs, action, dim=1)

    def critic_loss(
        self, q: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of values (critics, B) against targets (B,), and numbers to record."""
        # J_Q = mean of (Q_i(s, a) - y)^2, weighted where sampling was not uniform
        if weight is None:
            loss = mse_loss(q, target.expand_as(q))
        else:
            loss = (weight * (q - target).square()).mean()
        q = q.detach()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.mean(), "q": q, "target": target}
