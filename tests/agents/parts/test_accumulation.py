"""Gradients in parts: the same as in one piece, with less kept for them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.updater import ChunkedForward

ROWS = 37


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) / 4)
    return net


def rows(width: int = 5) -> Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.behaviour(number=65)
def test_parts_keep_less_for_the_gradient() -> None:
    def kept(parts: int) -> int:
        sizes: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            ChunkedForward(parts)(copy.deepcopy(network()), rows())
        return sum(sizes)

    assert kept(4) < kept(1) / 4


def test_nothing_is_recomputed_where_there_is_no_gradient() -> None:
    calls: list[int] = []

    def counting(one: Tensor) -> Tensor:
        calls.append(len(one))
        return one.square()

    with torch.no_grad():
        assert torch.equal(ChunkedForward(4)(counting, rows()), rows().square())
    assert calls == [10, 9, 9, 9]
    ChunkedForward(4)(counting, rows().requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(calls[4:]) == sorted(2 * [10, 9, 9, 9])
