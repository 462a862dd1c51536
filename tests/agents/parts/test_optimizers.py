"""Lean optimizers are torch's own, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam, RMSprop
from asyncrl.agents.parts.schedules import Schedule

STEPS = 5
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Pair(NamedTuple):
    """Ours and torch's, of the same settings."""

    make: Callable[[list[Tensor]], FastOptimizer]
    torchs: Callable[[list[Tensor]], torch.optim.Optimizer]


def adam(**settings: float) -> Pair:
    beta1 = settings.pop("beta1", 0.9)
    return Pair(
        lambda params: FusedAdam(params, 0.1, beta1=beta1, **settings),
        lambda params: torch.optim.Adam(
            params, lr=rate_on(params), betas=(beta1, 0.999), fused=True, **settings
        ),
    )


def rate_on(params: list[Tensor]) -> float | Tensor:
    return 0.1 if params[0].device.type == "cpu" else torch.tensor(0.1, device=params[0].device)


PAIRS = {
    "adam": adam(),
    "adam, another eps": adam(eps=1e-2),
    "adam, another beta": adam(beta1=0.5),
    "rmsprop": Pair(
        lambda params: RMSprop(params, 0.1, decay=0.9, eps=1e-3),
        lambda params: torch.optim.RMSprop(params, lr=0.1, alpha=0.9, eps=1e-3, foreach=True),
    ),
}
each_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def parameters(device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in [(40, 3), (7,), ()]]
    return [one.to(device).requires_grad_() for one in drawn]


def give_gradients(params: list[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(param.shape, generator=generator).to(param.device) for param in params]
    for param, gradient in zip(params, given, strict=True):
        param.grad = gradient
    return given


class Both:
    """The same parameters twice, ours and torch's, given the same gradients step by step."""

    def __init__(self, pair: Pair, device: str = "cpu") -> None:
        self.params, self.expected = parameters(device), parameters(device)
        self.optimizer, self.reference = pair.make(self.params), pair.torchs(self.expected)

    def step(self, seed: int) -> None:
        give_gradients(self.expected, seed)
        self.reference.step()
        self.optimizer.step(give_gradients(self.params, seed))

    def are_equal(self) -> bool:
        return all(torch.equal(*pair) for pair in zip(self.params, self.expected, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@each_pair
def test_steps_are_those_of_torch(pair: Pair, device: str) -> None:
    both = Both(pair, device)
    for seed in range(STEPS):
        both.step(seed)
    assert both.are_equal()


@each_pair
def test_it_resumes_from_a_state(pair: Pair) -> None:
    first, second = Both(pair), Both(pair)
    for seed in range(STEPS):
        first.step(seed)
        second.step(100 + seed)
    for mine, others in zip(second.params, first.params, strict=True):
        mine.data.copy_(others)
    second.optimizer.load(first.optimizer.state())
    for seed in range(STEPS, 2 * STEPS):
        first.step(seed)
        second.optimizer.step(give_gradients(second.params, seed))
    assert first.are_equal()
    assert all(torch.equal(*pair) for pair in zip(second.params, first.params, strict=True))


@each_pair
def test_a_parameter_that_a_loss_does_not_depend_on_stays(pair: Pair) -> None:
    params = parameters()
    optimizer, before = pair.make(params), [param.detach().clone() for param in params]
    for _ in range(STEPS):
        gradients = optimizer.gradients(params[0].square().sum() + params[2].exp())
        assert torch.equal(gradients[0], 2.0 * params[0])
        optimizer.step(gradients)
    changed = [not torch.equal(*pair) for pair in zip(params, before, strict=True)]
    assert changed == [True, False, True]


@pytest.mark.parametrize("device", DEVICES)
def test_learning_rate_follows_a_schedule(device: str) -> None:
    schedule = Schedule(points=((0, 0.1), (10, 0.05), (20, 0.0)))
    expected, params = parameters(device), parameters(device)
    adam = FusedAdam(params, schedule)
    reference = torch.optim.Adam(expected, lr=0.1, fused=True)
    for seed, env_steps in enumerate((0, 5, 10, 13, 20, 30)):
        give_gradients(expected, seed)
        assert adam.set_rate_at(env_steps) == schedule.at(env_steps)
        assert adam.learning_rate == pytest.approx(schedule.at(env_steps))
        reference.param_groups[0]["lr"] = schedule.at(env_steps)
        adam.step(give_gradients(params, seed))
        reference.step()
    for mine, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
def test_a_recorded_step_reads_the_learning_rate_again() -> None:
    params = parameters("cuda")
    adam, gradients = FusedAdam(params, 0.1), give_gradients(params, 0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        adam.step(gradients)
        adam.step(gradients)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam.step(gradients)
    for rate in (0.1, 0.0):
        adam.learning_rate = rate
        before = params[0].detach().clone()
        graph.replay()
        assert torch.equal(params[0], before) == (not rate)
