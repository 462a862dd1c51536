"""Actions drawn between bounds by squashing a Gaussian, and the temperature of their entropy."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardtanh, softplus

from asyncrl.agents._actor_critic import BoundedPolicy
from asyncrl.agents.fused_adam import FusedAdam
from asyncrl.types import Array

__all__ = ["SquashedPolicy", "Temperature", "sample_action"]

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


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


class Temperature:
    """The worth of entropy in units of reward: fixed, or adapted to a target entropy."""

    def __init__(
        self,
        fixed: float | None,
        initial: float,
        target_entropy: float,
        learning_rate: float,
        device: torch.device,
    ) -> None:
        self._fixed = None if fixed is None else torch.tensor(fixed).to(device)
        self._target_entropy = target_entropy
        self.log_alpha = torch.tensor(math.log(initial), device=device)
        self.adam = FusedAdam([self.log_alpha], learning_rate)

    def alpha(self) -> Tensor:
        """Return the temperature by now."""
        return self.log_alpha.exp() if self._fixed is None else self._fixed

    def improve(self, entropy: Tensor) -> None:
        """Raise the temperature where the entropy is below its target, lower it where above."""
        if self._fixed is not None:
            return
        # J_alpha = mean of -log alpha * (log pi(a|s) + H), whose slope is, in log alpha,
        # mean of -log pi(a|s), minus H
        self.log_alpha.grad = entropy - self._target_entropy
        self.adam.descend()
