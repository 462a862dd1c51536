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


def gradients(net: nn.Module, parts: int) -> tuple[Tensor, list[Tensor]]:
    net.zero_grad()
    answer = ChunkedForward(parts)(net, rows())
    answer.square().mean().backward()  # type: ignore[no-untyped-call]
    return answer.detach(), [
        param.grad.clone() for param in net.parameters() if param.grad is not None
    ]


@pytest.mark.behaviour(number=65)
@pytest.mark.parametrize("parts", [2, 5, 3 * ROWS])
def test_gradients_add_up_to_those_of_the_whole_batch(parts: int) -> None:
    net = network()
    answer, expected = net(rows()), gradients(net, 1)[1]
    output, found = gradients(net, parts)
    torch.testing.assert_close(output, answer)
    assert len(found) == len(expected) == 6
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_rows_may_lie_along_another_dimension_and_inputs_may_be_named() -> None:
    class Critics(nn.Module):
        def forward(self, obs: dict[str, Tensor], action: Tensor) -> Tensor:
            return torch.stack([obs["a"].sum(1) * action[:, 0], obs["b"][:, 0] + action[:, 0]])

    obs, action = {"a": rows(), "b": rows(2)}, rows(1).requires_grad_()
    found = ChunkedForward(4)(Critics(), obs, action, dim=1)
    torch.testing.assert_close(found, Critics()(obs, action))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert action.grad is not None
    torch.testing.assert_close(action.grad[:, 0], obs["a"].sum(1) + 1)


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
