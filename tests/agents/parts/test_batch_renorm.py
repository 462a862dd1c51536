"""Batch renormalisation, alone and between the layers of a network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from asyncrl.agents.parts import batch_renorm
from asyncrl.agents.parts.batch_renorm import RenormedCritics, RenormedLayers
from asyncrl.agents.parts.networks import Headed

EPSILON = 1e-3


def randomize(network: nn.Module, generator: torch.Generator) -> None:
    """Give matrices numbers around 0, and all else numbers above it."""
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and tensor.ndim > 1:
            nn.init.normal_(tensor, generator=generator)
        elif tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 2.0, generator=generator)


@pytest.mark.parametrize("warmup_batches", [0, 10])
def test_a_fused_pass_is_that_of_autograd(warmup_batches: int) -> None:
    generator = torch.Generator().manual_seed(2)
    one = RenormedLayers(4, (16, 8), 2, warmup_batches)
    randomize(one, generator)
    other = copy.deepcopy(one)
    x = 2.0 * torch.randn(30, 4, generator=generator) + 1.0
    x[:, 0] = 10.0 + 0.1 * x[:, 0]
    slope = torch.randn(30, 2, generator=generator)
    found = []
    for network, call in ((one, one), (other, lambda x: Headed.forward(other, x))):
        inputs = [x.clone().requires_grad_(), *network.parameters()]
        answer = call(inputs[0])
        gradients = torch.autograd.grad((answer * slope).sum(), inputs)
        found.append([answer, *gradients, *network.buffers()])
    for mine, expected in zip(*found, strict=True):
        assert_close(mine, expected)


def critics_and_twins(warmup_batches: int) -> tuple[RenormedCritics, list[RenormedLayers]]:
    """Return three critics with random numbers, and networks with those of each."""
    generator = torch.Generator().manual_seed(2)
    critics = RenormedCritics(3, 5, (16, 8), warmup_batches)
    twins = [RenormedLayers(5, (16, 8), 1, warmup_batches) for _ in range(3)]
    randomize(critics, generator)
    for k, twin in enumerate(twins):
        twin.load_state_dict(of_one(critics, k))
    return critics, twins


def of_one(critics: RenormedCritics, k: int) -> dict[str, torch.Tensor]:
    """Return the state of one of three critics, by the names of a network of layers."""
    state = critics.state_dict()
    for place in range(len(critics.norms)):
        norm = f"norms.{place}"
        for name in ("weight", "bias", "mean", "var"):
            state[f"{3 * place}.{name}"] = state.pop(f"{norm}.{name}").chunk(3)[k]
        state[f"{3 * place}.batches"] = state.pop(f"{norm}.batches")
        state[f"{3 * place + 1}.weight"] = state.pop(f"weights.{place}")[k]
        state[f"{3 * place + 1}.bias"] = state.pop(f"biases.{place}")[k, 0]
    return state


@pytest.mark.parametrize(
    ("fused", "warmup_batches", "training"),
    [(True, 0, True), (True, 10, True), (False, 0, True), (True, 0, False)],
)
def test_critics_together_are_those_that_autograd_computes_alone(
    fused: bool, warmup_batches: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    critics, twins = critics_and_twins(warmup_batches)
    obs, action = torch.randn(2, 30, 5, generator=torch.Generator().manual_seed(3)).split((3, 2), 2)
    obs, slope = 2.0 * obs[0] + 1.0, obs[1].mT
    obs[:, 0] = 10.0 + 0.1 * obs[:, 0]
    inputs = action.detach()
    monkeypatch.setattr(batch_renorm, "_is_fused", lambda _: fused)
    mine = inputs[0].clone().requires_grad_()
    values = critics.train(training)(obs, mine)
    (values * slope).sum().backward()
    monkeypatch.setattr(batch_renorm, "_is_fused", lambda _: False)
    theirs = inputs[0].clone().requires_grad_()
    x = torch.cat([obs, theirs], dim=1)
    expected = torch.cat([twin.train(training)(x) for twin in twins], dim=1).mT
    (expected * slope).sum().backward()
    assert_close(values, expected)
    assert mine.grad is not None
    assert theirs.grad is not None
    assert_close(mine.grad, theirs.grad)
    for param in critics.parameters():
        param.data, param.grad = param.grad, None  # type: ignore[assignment]  # none is missing
    for k, twin in enumerate(twins):
        gradients = {name: param.grad for name, param in twin.named_parameters()}
        for name, found in of_one(critics, k).items():
            wanted = gradients.get(name, twin.state_dict()[name])
            assert wanted is not None
            assert_close(found, wanted)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    atol = 1e-3 * float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=atol)


def test_the_first_critics_are_asked_alone() -> None:
    critics, _ = critics_and_twins(10)
    critics.eval()
    obs, action = torch.ones(4, 3), torch.linspace(-1.0, 1.0, 8).view(4, 2)
    assert torch.equal(critics(obs, action, 2), critics(obs, action)[:2])
