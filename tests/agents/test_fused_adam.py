"""The quick Adam is torch's own, bit by bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from asyncrl.agents.fused_adam import FusedAdam

STEPS = 5


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 3), (7,), ()]
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


def give_gradients(params: list[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)


def torchs(params: list[Tensor], eps: float = 1e-8) -> torch.optim.Adam:
    return torch.optim.Adam(params, lr=0.1, eps=eps, fused=True)


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_steps_are_those_of_torch(eps: float) -> None:
    expected, params = parameters(), parameters()
    adam, reference = FusedAdam(params, 0.1, eps), torchs(expected, eps)
    for seed in range(STEPS):
        for tensors in (expected, params):
            give_gradients(tensors, seed)
        adam.descend()
        reference.step()
    assert all(torch.equal(*pair) for pair in zip(params, expected, strict=True))
    assert adam.state_dict()["state"].keys() == reference.state_dict()["state"].keys()
    assert [float(adam.state[param]["step"]) for param in params] == [float(STEPS)] * 3


def test_it_goes_on_from_a_state_of_torchs() -> None:
    expected, params = parameters(), parameters()
    adam, reference = FusedAdam(params, 0.1), torchs(expected)
    for seed in range(STEPS):
        give_gradients(expected, seed)
        reference.step()
        give_gradients(params, 100 + seed)
        adam.descend()
    for mine, theirs in zip(params, expected, strict=True):
        mine.data.copy_(theirs)
    adam.load_state_dict(copy.deepcopy(reference.state_dict()))
    for seed in range(STEPS, 2 * STEPS):
        for tensors, step in ((expected, reference.step), (params, adam.descend)):
            give_gradients(tensors, seed)
            step()
    assert all(torch.equal(*pair) for pair in zip(params, expected, strict=True))


def test_learning_rate_may_change() -> None:
    params = parameters()
    adam = FusedAdam(params, 0.1)
    for rate in (0.1, 0.0):
        before = params[0].detach().clone()
        give_gradients(params, 1)
        adam.param_groups[0]["lr"] = rate
        adam.descend()
        assert torch.equal(params[0], before) == (rate == 0.0)
