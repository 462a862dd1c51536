"""Networks that tasks need and asyncrl does not provide."""

from __future__ import annotations

import math

from torch import nn

from asyncrl.agents.parts.networks import make_orthogonal
from asyncrl.core.env import EnvSpec


def shallow(spec: EnvSpec) -> nn.Module:
    """Make the smaller network of Espeholt et al. (2018), for 84x84 images.

    It needs a third of the multiplications of that of Mnih et al. (2015), which run here on a
    CPU.
    """
    network = nn.Sequential(
        nn.Conv2d(spec.observation.shape[0], 16, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 9 * 9, 256),
        nn.ReLU(),
    )
    make_orthogonal(network, math.sqrt(2.0))
    return network
