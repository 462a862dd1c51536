"""Computes a policy's network in the process that acts. Does not know how actions are chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import MLP, NetworkInput, Perturbation, pick_device
from asyncrl.core.inference import MEMORY, NOISE, OBS, OUTPUTS
from asyncrl.core.types import Array, Columns

Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Maps inputs on a device to outputs there, both by name."""

Read = Callable[[Tensor], NetworkInput]
"""Converts stored observations to inputs of a network."""


def _as_they_are(outputs: Tensor) -> Tensor:
    return outputs


def outputs_of(
    model: nn.Module, read: Read, complete: Callable[[Tensor], Tensor] = _as_they_are
) -> Compute:
    """Return how a model without memory computes; `complete` is what its outputs become."""

    def compute(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {OUTPUTS: complete(model(read(inputs[OBS])))}

    return compute


def steps_of(
    model: nn.Module, read: Read, complete: Callable[[Tensor], Tensor] = _as_they_are
) -> Compute:
    """Return how a model with a method `step` computes, which returns the memory as well."""

    def compute(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs, after = model.step(read(inputs[OBS]), inputs.get(MEMORY))  # type: ignore[operator]
        answer = {OUTPUTS: complete(outputs)}
        return answer if after is None else {**answer, MEMORY: after}

    return compute


def perturbed(compute: Compute, perturbation: Perturbation) -> Compute:
    """Return the same with noise in the network, where inputs have some."""

    def compute_with_noise(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        noise = inputs.get(NOISE)
        if noise is None:
            return compute(inputs)
        perturbation.set(noise)
        try:
            return compute(inputs)
        finally:
            perturbation.clear()

    return compute_with_noise


class LocalInference:
    """Passes rows through a network on a device."""

    def __init__(
        self, model: nn.Module, compute: Compute, device: torch.device, *, plain: bool = False
    ) -> None:
        """Compute with a model; `plain` says that outputs are the model's for float32 of inputs."""
        self._model = model
        self._compute = compute
        self._plain = plain
        self.device = device
        """The network's device."""

    def __call__(self, inputs: Columns) -> Columns:
        """Return the network's outputs for these rows, as arrays."""
        device = self.device
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(rows).to(device) for name, rows in inputs.items()}
            return {name: out.cpu().numpy() for name, out in self._compute(tensors).items()}

    def compute_on(self, device: str) -> None:
        """Move the model to a device; raise `ConfigError` if it does not exist."""
        self.device = pick_device(device, "serving.device")
        self._model.to(self.device)

    def fast(self, *, one_thread: bool) -> ColumnInference | None:
        """Return what computes an MLP by columns; None for another network or device."""
        if self._plain and type(self._model) is MLP and self.device.type == "cpu":
            return ColumnInference(self._model, one_thread=one_thread)
        return None


_MOST_PRODUCTS = 1 << 18
"""Products of a layer's weights and rows, of several rows, up to which OpenBLAS, which numpy calls,
starts no other thread."""

_FEW_WEIGHTS = 9216
"""For a single row OpenBLAS starts no other thread if each layer has fewer weights."""

_MOST_UNITS = 1 << 12
"""Products of a layer's units and rows up to which numpy is faster than torch: measured on a Xeon
of 2.5 GHz with 64 to 1024 units."""


class ColumnInference:
    """Computes an MLP on a CPU by columns, with the parameters in place: few rows by numpy.

    Torch's calls take longer than the arithmetic of a few rows. And both libraries multiply weights
    by columns faster than rows by weights, with AVX-512 and with AVX2. On a Xeon of 2.5 GHz one row
    takes 10 us instead of 52 with 64x64 units, 64 rows 29 instead of 73, and 256 rows 65 instead of
    99; with 256x256 units 15 instead of 60, 118 instead of 173, and 398 instead of 460.
    """

    def __init__(self, model: MLP, *, one_thread: bool) -> None:
        """`one_thread` says whether numpy is limited to one thread, as in processes of actors."""
        self._layers = [(weight.detach(), bias.detach()[:, None]) for weight, bias in model.layers]
        arrays = [(weight.numpy(), bias.numpy()) for weight, bias in self._layers]
        *self._hidden, self._head = arrays
        weights = max(1, *(weight.size for weight, _ in arrays))
        units = max(bias.size for _, bias in arrays)
        self._most_rows = max(1, min(_MOST_PRODUCTS // weights, _MOST_UNITS // units))
        self._fewest_rows = 1 if one_thread or weights < _FEW_WEIGHTS else 2

    def __call__(self, inputs: Columns) -> Columns:
        """Return the network's outputs for these rows."""
        rows = inputs[OBS].astype(np.float32, copy=False)
        few = self._fewest_rows <= len(rows) <= self._most_rows
        outputs = self._by_numpy(rows.T) if few else self._by_torch(rows.T)
        return {OUTPUTS: np.ascontiguousarray(outputs.T)}  # in the order that users expect

    def _by_numpy(self, x: Array) -> Array:
        for weight, bias in self._hidden:
            x = weight.dot(x)
            x += bias
            np.maximum(x, 0.0, out=x)
        weight, bias = self._head
        outputs: Array = weight.dot(x) + bias
        return outputs

    @torch.inference_mode()
    def _by_torch(self, columns: Array) -> Array:
        x = torch.from_numpy(columns)
        *hidden, (head_weight, head_bias) = self._layers
        for weight, bias in hidden:
            x = torch.addmm(bias, weight, x).relu_()
        return torch.addmm(head_bias, head_weight, x).numpy()
