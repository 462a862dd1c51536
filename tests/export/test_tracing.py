"""Which policies can act without torch; what their traces are worth is in `test_acting.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError
from asyncrl.export.tracing import plan_acting
from tests.export.test_acting import CHOICES
from tests.support.fakes import ConstantConfig


class Own(nn.Module):
    """A network with an operation that numpy lacks here, or that depends on its input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.kind = kind
        self.table = torch.zeros(5000, 4)
        self.transposed = self.layer.weight.detach().t()

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.layer(obs)
        match self.kind:
            case "gelu":
                return nn.functional.gelu(values)
            case "branch":
                return values if float(obs.sum()) > 0 else -values
            case "transposed":
                return obs @ self.transposed
            case "table":
                return values + self.table.sum(dim=0)
        return values + torch.rand(4)


def own_gelu(*_: Any) -> nn.Module:
    return Own("gelu")


def own_branch(*_: Any) -> nn.Module:
    return Own("branch")


def own_transposed(*_: Any) -> nn.Module:
    return Own("transposed")


def own_table(*_: Any) -> nn.Module:
    return Own("table")


def own_random(*_: Any) -> nn.Module:
    return Own("random")


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (ConstantConfig(), "has no chooser that acts without its network"),
        (DQNConfig(noisy=True), "networks with noise are not traced"),
        (DQNConfig(network=own_gelu), "gelu.*, which exported policies do not support"),
        (DQNConfig(network=own_branch), "the network cannot be traced"),
        (DQNConfig(network=own_transposed), "compute another outputs than the network"),
        (DQNConfig(network=own_table), "large arrays that are no parameters"),
        (DQNConfig(network=own_random), "rand.*, which exported policies do not support"),
    ],
    ids=["no network", "noise", "operation", "branch", "transposed", "table", "random"],
)
def test_what_cannot_be_traced_is_refused_in_words(agent: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_acting(agent, CHOICES)
