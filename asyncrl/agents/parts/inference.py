"""Computes a policy's network in the process that acts. Does not know how actions are chosen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.core.types import Columns

Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Maps inputs on a device to outputs there, both by name."""


class LocalInference:
    """Passes rows through a network on a device."""

    def __init__(self, compute: Compute, device: torch.device) -> None:
        self._compute = compute
        self.device = device
        """The network's device."""

    def __call__(self, inputs: Columns) -> Columns:
        """Return the network's outputs for these rows, as arrays."""
        device = self.device
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(rows).to(device) for name, rows in inputs.items()}
            return {name: out.cpu().numpy() for name, out in self._compute(tensors).items()}
