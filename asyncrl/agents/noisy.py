"""Noisy layers: exploration by weights that are drawn anew, with a spread that is learned.

Fortunato et al. (2018), Noisy networks for exploration, https://arxiv.org/abs/1706.10295, with
factorised Gaussian noise. A layer with p inputs and q outputs draws p + q numbers instead of p * q:

    y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out)
    f(e) = sign(e) sqrt(|e|)

What differs: with the outer product multiplied out, noise need not be the same for all rows of a
batch. So each environment of an actor draws its own. In an optimisation step, the online network
has one noise for all that it is asked, and the target network another; the paper draws a third for
the choice of the next action in double Q-learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents._heads import Headed


class NoisyLinear(nn.Linear):
    """A linear layer whose weights are Gaussian, or are their means where there is no noise."""

    noise: Tensor | None
    """(1 or rows, inputs + outputs), for a `Perturbation` to set. None: no noise."""

    def __init__(self, n_inputs: int, n_outputs: int, sigma: float = 0.5) -> None:
        """Make a layer whose spread starts at `sigma` over the root of the inputs."""
        super().__init__(n_inputs, n_outputs)  # draws mu from U(-1 / sqrt(p), 1 / sqrt(p))
        spread = sigma * n_inputs**-0.5
        self.weight_sigma = nn.Parameter(torch.full((n_outputs, n_inputs), spread))
        self.bias_sigma = nn.Parameter(torch.full((n_outputs,), spread))
        self.noise = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, outputs) of (..., rows, inputs)."""
        if self.noise is None:
            return functional.linear(x, self.weight, self.bias)
        into, out = self.noise.split([self.in_features, self.out_features], dim=1)
        if len(self.noise) == 1:
            # mu + sigma * f(e_out) f(e_in)^T
            weight = torch.addcmul(self.weight, self.weight_sigma, out.mT * into)
            bias = torch.addcmul(self.bias, self.bias_sigma, out[0])
            return functional.linear(x, weight, bias)
        y = functional.linear(x, self.weight, self.bias)
        # (sigma_w * f_out f_in^T) x + sigma_b * f_out = f_out * (sigma_w (f_in * x) + sigma_b)
        spread = functional.linear(x * into, self.weight_sigma, self.bias_sigma)
        perturbed: Tensor = y + out * spread
        return perturbed


class NoisyMLP(Headed):
    """Noisy layers with ReLU between them, and none after the last, which is a head."""

    def __init__(
        self, n_inputs: int, hidden: Sequence[int], n_outputs: int, sigma: float = 0.5
    ) -> None:
        sizes = pairwise([n_inputs, *hidden, n_outputs])
        layers = [module for size in sizes for module in (NoisyLinear(*size, sigma), nn.ReLU())]
        super().__init__(*layers[:-1])


class Perturbation:
    """The noise of all noisy layers of one network, drawn at once; nothing if it has none."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [m for m in network.modules() if isinstance(m, NoisyLinear)]
        self._sizes = [layer.in_features + layer.out_features for layer in self._layers]
        self.size = sum(self._sizes)
        """Numbers that a row of noise has."""

    def draw(self, random: np.random.Generator, rows: int) -> Tensor:
        """Return noise (rows, size), on the CPU."""
        return self.shape(torch.from_numpy(random.standard_normal((rows, self.size), np.float32)))

    @staticmethod
    def shape(normal: Tensor) -> Tensor:
        """Return f of numbers that are normally distributed."""
        # f(e) = sign(e) sqrt(|e|)
        return normal.abs().sqrt_().copysign_(normal)

    def set(self, noise: Tensor) -> None:
        """Perturb the network, with noise (1 or rows, size), until `clear`."""
        for layer, part in zip(self._layers, noise.split(self._sizes, dim=1), strict=True):
            layer.noise = part

    def clear(self) -> None:
        """Let the network compute with its mean weights."""
        for layer in self._layers:
            layer.noise = None
