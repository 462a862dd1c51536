"""Networks that agents build when they are given none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

__all__ = ["mlp"]


def mlp(n_inputs: int, hidden: Sequence[int], n_outputs: int) -> nn.Sequential:
    """Make linear layers with ReLU between them, and none after the last."""
    sizes = [n_inputs, *hidden, n_outputs]
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
