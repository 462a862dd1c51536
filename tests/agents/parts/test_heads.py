"""Beside bfloat16, last layers answer in float32, and none of the layers in front of them do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from asyncrl.agents.parts.networks import MLP, NoisyMLP
from tests.contracts.test_agent import WITH_NETWORKS, batch_for

HIDDEN = 16
"""Outputs of each hidden layer of the cases; no head has as many."""


class LinearLayers(TorchFunctionMode):
    """Writes down how many outputs linear layers have, and what they come in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, torch.dtype]] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in (functional.linear, torch.baddbmm):
            self.seen.add((answer.shape[-1], answer.dtype))
        return answer


@pytest.mark.parametrize("name", WITH_NETWORKS)
def test_heads_alone_compute_in_float32(name: str) -> None:
    case = WITH_NETWORKS[name]
    config: Any = replace(case.config, precision="bfloat16")  # type: ignore[type-var]
    agent: Any = replace(case, config=config).build()
    batch, layers = batch_for(case, 0), LinearLayers()
    with layers:
        agent.opt(batch)
    assert HIDDEN in dict(layers.seen)
    assert len(dict(layers.seen)) > 1, "a head, too"
    for n_outputs, dtype in layers.seen:
        assert dtype == (torch.bfloat16 if n_outputs == HIDDEN else torch.float32)


@pytest.mark.parametrize("make", [MLP, NoisyMLP])
def test_layers_of_double_precision_keep_it_beside_bfloat16(make: Callable[..., nn.Module]) -> None:
    network, features = make(3, (4,), 2).double(), torch.rand(5, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        answer = network(features)
    assert torch.equal(answer, network(features))
