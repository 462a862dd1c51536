"""Choosing bounded continuous actions from a network's outputs. Loads no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from asyncrl.agents.parts.choosing import Chooser
from asyncrl.agents.parts.schedules import Schedule, value_at
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import OBS, OUTPUTS
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, BoolArray

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


class Bounds:
    """Bounds of continuous actions of any shape, and the conversion between them and [-1, 1]."""

    def __init__(self, spec: EnvSpec, algorithm: str) -> None:
        """Take the bounds of the action space; raise if the algorithm cannot use it."""
        box = _checked_box(spec, algorithm)
        self.shape, self.dtype = box.shape, box.dtype
        self.size = math.prod(box.shape)
        """Number of action dimensions."""
        self._low, self._high = box.low.ravel(), box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self.center = ((high + low) / 2).astype(np.float32)
        """Centers of the intervals (size,)."""
        self.half = ((high - low) / 2).astype(np.float32)
        """Half their widths."""

    def actions(self, unit: Array) -> Array:
        """Convert (B, size) in [-1, 1] to the environment's actions (B, *shape)."""
        action = (self.center + self.half * unit).astype(self.dtype)
        # clipped because rounding may exceed the bounds
        action = action.clip(self._low, self._high)
        return action.reshape(len(unit), *self.shape)


_erf = np.frompyfunc(math.erf, 1, 1)


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
        steady: Array = np.asarray(_erf(self.normal(shape) / math.sqrt(2.0)), np.float32)
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


class BoundedChooser(Chooser, ABC):
    """Acts uniformly at random for the first steps of a run, then as a subclass chooses.

    Its hook is `choose(answers)`.
    """

    squashed = True

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        algorithm: str,
        random_env_steps: int = 0,
        noise_correlation_env_steps: float = 0.0,
    ) -> None:
        """Set up; raise if the algorithm, named in errors, cannot use the action space."""
        super().__init__(spec, context)
        self.bounds = Bounds(spec, algorithm)
        self.noise = LastingNoise(noise_correlation_env_steps, self.random)
        self.random_env_steps = random_env_steps

    def act(self, obs: Array) -> Act:
        """Choose actions within the bounds."""
        if self.training and self.env_steps < self.random_env_steps:
            unit = self.noise.uniform((len(obs), self.bounds.size))
        else:
            unit = self.choose(self.inference({OBS: obs})[OUTPUTS])
        if self.training:
            self.env_steps += len(obs)
        return Act(self.bounds.actions(unit))

    def forget(self, where: BoolArray) -> None:
        """Restart the noise where an episode begins; evaluations have none."""
        if self.training:
            self.noise.begin(where)

    @abstractmethod
    def choose(self, answers: Array) -> Array:
        """Return actions (B, size) in [-1, 1] for the model's outputs."""


class SquashedChooser(BoundedChooser):
    """Chooses from means and log standard deviations."""

    def choose(self, answers: Array) -> Array:
        """Return a sample when training and the mean when not, in [-1, 1]."""
        mean, log_std = answers[:, : self.bounds.size], answers[:, self.bounds.size :]
        if self.training:
            std = np.exp(log_std.clip(_LOG_STD_MIN, _LOG_STD_MAX))
            mean = mean + std * self.noise.normal(mean.shape)
        unit: Array = np.tanh(mean)
        return unit


class NoisyChooser(BoundedChooser):
    """Adds noise to a deterministic policy's actions before they are squashed."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        noise: float | Schedule,
        noise_ladder: float = 1.0,
        **settings: Any,  # noqa: ANN401  # those of `BoundedChooser`
    ) -> None:
        """Add noise of this standard deviation, spread over environments by the ladder."""
        super().__init__(spec, context, **settings)
        self._std, self._ladder, self._context = noise, noise_ladder, context
        self.spread(context.n_actors)

    def spread(self, n_actors: int) -> None:
        """Take the places on the ladder of a run with this number of actors."""
        self._rungs = _rungs(self._ladder, self._context, n_actors)

    def scales(self) -> Array:
        """Return the current standard deviation of the noise of each environment."""
        return value_at(self._std, self.env_steps) * self._rungs

    def record(self) -> Record:
        """Return the amount of exploration: the mean standard deviation of action noise."""
        return {"exploration_noise": float(self.scales().mean())}

    def choose(self, answers: Array) -> Array:
        """Return pi(s), with noise when training."""
        unit: Array = np.tanh(answers)
        if not self.training:
            return unit
        # Clipped, since noise may exceed the bounds of actions.
        noise = self.scales()[:, None] * self.noise.normal(unit.shape)
        noisy: Array = (unit + noise).clip(-1.0, 1.0)
        return noisy


def _rungs(ladder: float, context: PolicyContext, n_actors: int) -> Array:
    """Return the factor of each environment's noise."""
    n = n_actors * context.n_envs
    if n == 1:
        return np.ones(1, np.float32)
    # ladder^(1 - 2 i / (N - 1)), counted across all actors
    i = context.actor_id * context.n_envs + np.arange(context.n_envs)
    rungs: Array = (ladder ** (1.0 - 2.0 * np.minimum(i / (n - 1), 1.0))).astype(np.float32)
    return rungs
