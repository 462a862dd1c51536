"""The temperature of a policy's entropy: how much randomness is worth in units of reward."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from asyncrl.agents.optimizers import FusedAdam, LeanOptimizer
from asyncrl.core.settings import check_not_negative, check_positive


class TemperatureSettings(Protocol):
    """What a config says of the temperature."""

    @property
    def alpha(self) -> float | None:
        """Fixed temperature; None adapts it."""

    @property
    def initial_alpha(self) -> float:
        """Temperature at which adapting starts."""

    @property
    def alpha_learning_rate(self) -> float:
        """Of the temperature's Adam."""


def check_temperature(config: TemperatureSettings) -> None:
    """Refuse temperatures below 0, and ones that could not adapt."""
    check_not_negative("alpha", config.alpha or 0.0)
    check_positive("initial_alpha", config.initial_alpha)
    check_positive("alpha_learning_rate", config.alpha_learning_rate)


class Temperature:
    """Fixed, or adapted to a target entropy."""

    def __init__(
        self, config: TemperatureSettings, target_entropy: float, device: torch.device
    ) -> None:
        self._fixed = None if config.alpha is None else torch.tensor(config.alpha).to(device)
        self._target_entropy = target_entropy
        self._log_alpha = torch.tensor(math.log(config.initial_alpha), device=device)
        self._adam = FusedAdam([self._log_alpha], config.alpha_learning_rate)

    @property
    def parts(self) -> dict[str, Tensor | LeanOptimizer]:
        """What an agent's state saves of it."""
        return {"log_alpha": self._log_alpha, "alpha_adam": self._adam}

    def alpha(self) -> Tensor:
        """Return the temperature by now."""
        return self._log_alpha.exp() if self._fixed is None else self._fixed

    def improve(self, entropy: Tensor) -> None:
        """Raise the temperature where the entropy is below its target, lower it where above."""
        if self._fixed is not None:
            return
        # The slope of J_alpha in log alpha: mean of -log pi(a|s), minus the target entropy.
        self._log_alpha.grad = entropy - self._target_entropy
        self._adam.descend()
