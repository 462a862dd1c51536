"""Computes a policy's network in the process that acts. Does not know how actions are chosen."""

from __future__ import annotations

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
"""Products of a layer's weights and rows up to which numpy is faster, and OpenBLAS starts no other
thread for a matrix."""

_MOST_UNITS = 1 << 14
"""Products of a layer's units and rows up to which numpy is faster: bias and ReLU take more of its
time than of torch's."""

_FEW_WEIGHTS = 9216
"""OpenBLAS starts no other thread for a single row if each layer has fewer weights."""


class NumpyInference:
    """Computes few rows of an MLP on a CPU by numpy, with the parameters in place.

    Torch's calls take longer than the arithmetic of a few rows: 64x64 units take 13 us instead of
    50 us for one row, and 39 us instead of 73 us for 64 rows, on a Xeon of 2.5 GHz; less than 40 %
    of the time where the caches are cold, as after each step of a slow environment. More rows pass
    through the network, and so does a single one for which numpy would start threads.
    """

    def __init__(self, network: Inference, model: MLP, *, one_thread: bool) -> None:
        """`one_thread` says whether numpy is limited to one thread, as in processes of actors."""
        arrays = [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in model.layers]
        *self._hidden, self._head = [(weight.T, bias) for weight, bias in arrays]
        self._network = network
        weights = max(1, *(weight.size for weight, _ in arrays))
        units = max(bias.size for _, bias in arrays)
        self._most_rows = max(1, min(_MOST_PRODUCTS // weights, _MOST_UNITS // units))
        self._fewest_rows = 1 if one_thread or weights < _FEW_WEIGHTS else 2

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
