"""Actions drawn between bounds by squashing a Gaussian: what SAC and CrossQ share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardtanh, softplus

from asyncrl.agents._actor_critic import ActorCriticConfig, BoundedPolicy
from asyncrl.agents._temperature import Temperature, check_temperature
from asyncrl.agents.networks import MakeNetwork
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashedConfig(ActorCriticConfig):
    """Settings of an actor that squashes a Gaussian, and of the temperature of its entropy."""

    actor_network: MakeNetwork | None = None
    """Makes your own actor: float observations (B, ...), images within [0, 1], or a dict of such by
    field name -> (B, 2 * action dimensions), first the means, then the logarithms of the standard
    deviations, before squashing. Must be importable, or cloudpickle-able."""

    alpha: float | None = None
    """Fixed temperature, the worth of entropy in units of reward; None adapts it."""

    initial_alpha: float = 1.0
    """Temperature at which adapting starts."""

    target_entropy: float | None = None
    """Entropy of actions scaled to [-1, 1] that adapting aims at; None: minus their dimensions."""

    alpha_learning_rate: float = 1e-3
    """Of the temperature's Adam."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError(f"agent.target_entropy must be finite, got {self.target_entropy}")
        check_temperature(self)

    def temperature(self, n_dimensions: int, device: torch.device) -> Temperature:
        """Make the temperature of actions of so many dimensions."""
        aim = self.target_entropy
        return Temperature(self, -float(n_dimensions) if aim is None else aim, device)


class SquashedPolicy(BoundedPolicy):
    """Acts as a network says that answers with means and logarithms of standard deviations."""

    def _choose(self, answers: Array) -> Array:
        """Return a sample when training and the mean when not, in [-1, 1]."""
        mean, log_std = answers[:, : self.bounds.size], answers[:, self.bounds.size :]
        if self.training:
            std = np.exp(log_std.clip(_LOG_STD_MIN, _LOG_STD_MAX))
            mean = mean + std * self.noise.normal(mean.shape)
        unit: Array = np.tanh(mean)
        return unit


def sample_action(actor_output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in [-1, 1] and the logarithms of their probability densities."""
    mean, log_std = actor_output.chunk(2, dim=1)
    log_std = hardtanh(log_std, _LOG_STD_MIN, _LOG_STD_MAX)  # clamps, with a cheaper gradient
    u = torch.addcmul(mean, log_std.exp(), noise)
    # a = tanh u, so log pi(a|s) = sum_j log N(u_j; mean, std) - log(1 - tanh^2 u_j), where
    # log N = -noise^2 / 2 - log std - log(2 pi) / 2 and, without cancellation for large |u|,
    # log(1 - tanh^2 u) = 2 (log 2 - u - softplus(-2 u)).
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    squash = math.log(2.0) - u - softplus(-2.0 * u)
    log_prob: Tensor = (normal - 2.0 * squash).sum(dim=1)
    return u.tanh(), log_prob
