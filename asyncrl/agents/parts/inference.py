"""Computes a policy's network in the process that acts. Does not know how actions are chosen."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from asyncrl.agents.parts.networks import MLP
from asyncrl.core.inference import OBS, OUTPUTS, Inference
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


_MOST_PRODUCTS = 1 << 18
"""Products of a layer's weights and rows up to which numpy is faster: OpenBLAS has special code for
small matrices, and starts no other thread for them."""

_MOST_WEIGHTS = 9216
"""Weights of a layer up to which OpenBLAS starts no thread for a single row."""


class NumpyInference:
    """Computes few rows of an MLP on a CPU by numpy, with the parameters in place.

    Torch's calls take longer than the arithmetic of a few rows: 64x64 units take 13 us instead of
    50 us for one row, and 36 us instead of 71 us for 64 rows, on a Xeon of 2.5 GHz; less than 40 %
    of the time where the caches are cold, as after each step of a slow environment. More rows pass
    through the network.
    """

    def __init__(self, network: Inference, model: MLP) -> None:
        arrays = [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in model.layers]
        *self._hidden, self._head = [(weight.T, bias) for weight, bias in arrays]
        self._network = network
        most = max(weight.size for weight, _ in arrays)
        self._most_rows = max(_MOST_PRODUCTS // most, 1)
        alone = most < _MOST_WEIGHTS or os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        self._fewest_rows = 1 if alone else 2

    def __call__(self, inputs: Columns) -> Columns:
        """Return the network's outputs for these rows."""
        x = inputs[OBS]
        if not self._fewest_rows <= len(x) <= self._most_rows:
            return self._network(inputs)
        x = x.astype(np.float32, copy=False)
        for weight, bias in self._hidden:
            x = x.dot(weight)
            x += bias
            np.maximum(x, 0.0, out=x)
        weight, bias = self._head
        return {OUTPUTS: x.dot(weight) + bias}
