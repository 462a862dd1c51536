"""Networks that agents build when they are given none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from asyncrl.env import BoxSpec
from asyncrl.errors import ConfigError

__all__ = ["DuelingHead", "as_float", "mlp", "nature_cnn", "q_network"]


def as_float(obs: Tensor) -> Tensor:
    """Return observations as networks want them: float32, and bytes (images) within [0, 1]."""
    return obs.float() / 255.0 if obs.dtype == torch.uint8 else obs.float()


def mlp(n_inputs: int, hidden: Sequence[int], n_outputs: int) -> nn.Sequential:
    """Make linear layers with ReLU between them, and none after the last."""
    sizes = [n_inputs, *hidden, n_outputs]
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def nature_cnn(n_channels: int) -> nn.Sequential:
    """Make the convolutions of Mnih et al. (2015), and flatten what comes out of them."""
    return nn.Sequential(
        nn.Conv2d(n_channels, 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a'); equation 9 of Wang et al. (2016)."""

    def __init__(self, n_inputs: int, hidden: Sequence[int], n_actions: int) -> None:
        super().__init__()
        self.value = mlp(n_inputs, hidden, 1)
        self.advantage = mlp(n_inputs, hidden, n_actions)

    def forward(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


def q_network(
    observation: BoxSpec, hidden: Sequence[int], n_actions: int, *, dueling: bool = False
) -> nn.Sequential:
    """Make a network from (B, ...) float observations to (B, n_actions) values.

    Images (uint8, channels first) go through `nature_cnn`, anything else is flattened; then come
    the hidden layers. With `dueling`, the last of them is there twice, once in each stream.
    """
    shape = observation.shape
    layers: list[nn.Module] = []
    if len(shape) == 3 and observation.dtype == "uint8":
        layers += nature_cnn(shape[0])
    elif not shape:
        layers.append(nn.Unflatten(0, (-1, 1)))
    elif len(shape) > 1:
        layers.append(nn.Flatten())
    n_features = _n_outputs(layers, shape)
    if not dueling:
        return nn.Sequential(*layers, *mlp(n_features, hidden, n_actions))
    for n_outputs in hidden[:-1]:
        layers += [nn.Linear(n_features, n_outputs), nn.ReLU()]
        n_features = n_outputs
    return nn.Sequential(*layers, DuelingHead(n_features, hidden[-1:], n_actions))


def _n_outputs(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> int:
    try:
        with torch.no_grad():
            return int(nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1])
    except RuntimeError as error:
        raise ConfigError(
            f"images of shape {shape} do not fit the default network, which takes (channels, "
            "height, width) of at least 36x36 pixels; transpose them, or set agent.network"
        ) from error
