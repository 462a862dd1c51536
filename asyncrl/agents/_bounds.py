"""The box that actions lie in, and noise in actions that lasts as long as it is asked to."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray


class Bounds:
    """A box of continuous actions, of any shape, and the way to it from [-1, 1] and back."""

    def __init__(self, spec: EnvSpec, algorithm: str) -> None:
        """Take the box of actions, or say why an algorithm of that name cannot act in it."""
        box = _checked_box(spec, algorithm)
        self.shape, self.dtype = box.shape, box.dtype
        self.size = math.prod(box.shape)
        """Numbers in an action."""
        self._low, self._high = box.low.ravel(), box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._center = ((high + low) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def actions(self, unit: Array) -> Array:
        """Return the environment's actions (B, *shape) of numbers (B, size) in [-1, 1]."""
        action = (self._center + self._half * unit).astype(self.dtype)
        # clipped because rounding may lead out of the box
        action = action.clip(self._low, self._high)
        return action.reshape(len(unit), *self.shape)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the middles of the intervals and half their widths, both (size,)."""
        return torch.from_numpy(self._center).to(device), torch.from_numpy(self._half).to(device)


class LastingNoise:
    """Standard normal numbers that stay alike for some steps: an Ornstein-Uhlenbeck process.

    Whatever the step, the numbers are standard normal; those `k` steps apart in one episode are
    correlated by exp(-k / correlation_env_steps). With 0 they are drawn anew at each step.
    """

    def __init__(self, correlation_env_steps: float, random: np.random.Generator) -> None:
        self._keep = math.exp(-1.0 / correlation_env_steps) if correlation_env_steps else 0.0
        self._random = random
        self._last = np.zeros((0, 0), np.float32)
        self._begins = np.zeros(0, np.bool_)

    def begin(self, where: BoolArray) -> None:
        """Draw the next numbers of these rows anew: an episode begins there.

        So a run that is resumed, which begins with new episodes, need not know the last ones.
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
        """Return numbers that are uniform in [-1, 1]."""
        if not self._keep:
            return self._random.uniform(-1.0, 1.0, shape)
        # Phi(x) of a standard normal x is uniform in [0, 1], and 2 Phi(x) - 1 = erf(x / sqrt 2).
        steady: Array = torch.erf(torch.from_numpy(self.normal(shape)) / math.sqrt(2.0)).numpy()
        return steady


def _checked_box(spec: EnvSpec, algorithm: str) -> BoxSpec:
    box = spec.action
    if not isinstance(box, BoxSpec):
        raise ConfigError(
            f"{algorithm} chooses continuous actions, but these are {box.n} discrete ones; use DQN"
        )
    if np.dtype(box.dtype).kind != "f":
        raise ConfigError(
            f"{algorithm} chooses actions of a float dtype, but these are {box.dtype}"
            f"{', several choices at once; use PPO' if box.categorical else ''}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = box.high.astype(np.float32) - box.low.astype(np.float32)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            f"{algorithm} scales actions between bounds, which must be finite and apart, but these "
            f"are low={box.low.tolist()}, high={box.high.tolist()}; give the environment's action "
            "space bounds where it is made"
        )
    return box
