"""Which policies can act without torch; what their traces are worth is in `test_acting.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.export.tracing import plan_acting, some_observations
from tests.export.test_acting import CHOICES
from tests.support.fakes import ConstantConfig


def test_random_observations_have_all_whole_numbers_of_a_space_and_no_others() -> None:
    low, high = np.array([3, 0], np.uint8), np.array([3, 2], np.uint8)
    rows = some_observations(BoxSpec((2,), "uint8", low, high), 100, np.random.default_rng(0))
    assert rows.dtype == np.uint8
    assert [set(column) for column in rows.T] == [{3}, {0, 1, 2}]


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


def own(kind: str) -> Callable[[EnvSpec], nn.Module]:
    return lambda _: Own(kind)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (ConstantConfig(), "has no chooser that acts without its network"),
        (DQNConfig(noisy=True), "networks with noise are not traced"),
        (DQNConfig(network=own("gelu")), "gelu.*, which exported policies do not support"),
        (DQNConfig(network=own("branch")), "the network cannot be traced"),
        (DQNConfig(network=own("transposed")), "compute another outputs than the network"),
        (DQNConfig(network=own("table")), "large arrays that are no parameters"),
        (DQNConfig(network=own("random")), "rand.*, which exported policies do not support"),
    ],
    ids=["no network", "noise", "operation", "branch", "transposed", "table", "random"],
)
def test_what_cannot_be_traced_is_refused_in_words(agent: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_acting(agent, CHOICES)
