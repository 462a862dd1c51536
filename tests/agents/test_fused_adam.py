"""The quick Adam is torch's own, bit by bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from asyncrl.agents.fused_adam import FusedAdam
from asyncrl.agents.schedules import Schedule

STEPS = 5
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def parameters(device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in [(40, 3), (7,), ()]]
    return [one.to(device).requires_grad_() for one in drawn]


def give_gradients(params: list[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.device)


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


def test_what_no_loss_depends_on_stays_as_it_is() -> None:
    expected, params = parameters(), parameters()
    adam, reference = FusedAdam(params, 0.1), torchs(expected)
    unused = params[1].detach().clone()
    for seed in range(STEPS):
        for tensors, step in ((expected, reference.step), (params, adam.descend)):
            give_gradients(tensors, seed)
            tensors[1].grad = None
            step()
    assert torch.equal(params[1], unused)
    assert all(torch.equal(*pair) for pair in zip(params, expected, strict=True))


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


@pytest.mark.parametrize("device", DEVICES)
def test_learning_rate_follows_a_schedule(device: str) -> None:
    schedule = Schedule(points=((0, 0.1), (10, 0.05), (20, 0.0)))
    expected, params = parameters(device), parameters(device)
    adam, reference = FusedAdam(params, schedule), torchs(expected)
    for seed, env_steps in enumerate((0, 5, 10, 13, 20, 30)):
        for tensors in (expected, params):
            give_gradients(tensors, seed)
        assert adam.follow(env_steps) == schedule.at(env_steps)
        assert float(adam.tell("rate")["rate"]) == pytest.approx(schedule.at(env_steps))
        reference.param_groups[0]["lr"] = schedule.at(env_steps)
        adam.descend()
        reference.step()
        if seed == 2:
            adam.load_state_dict(copy.deepcopy(adam.state_dict()))
    for mine, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_a_number_follows_nothing() -> None:
    adam = FusedAdam(parameters(), 0.1)
    adam.param_groups[0]["lr"] = 0.3
    assert adam.follow(1000) == 0.1
    assert adam.param_groups[0]["lr"] == 0.3
    assert adam.tell("rate") == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_reads_the_learning_rate_anew() -> None:
    params = parameters("cuda")
    adam = FusedAdam(params, Schedule(points=((0, 0.1), (10, 0.0)), interpolate=False))
    give_gradients(params, 0)
    adam.follow(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        adam.descend()
        adam.descend()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam.descend()
    for env_steps in (0, 10):
        adam.follow(env_steps)
        before = params[0].detach().clone()
        graph.replay()
        assert torch.equal(params[0], before) == (env_steps == 10)
