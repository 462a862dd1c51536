"""Lean optimizers are torch's own, bit by bit."""

from __future__ import annotations

import copy
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
            params, lr=0.1, betas=(beta1, 0.999), fused=True, **settings
        ),
    )


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


def give_gradients(params: list[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.device)


class Both:
    """The same parameters twice, ours and torch's, given the same gradients step by step."""

    def __init__(self, pair: Pair, device: str = "cpu") -> None:
        self.params, self.expected = parameters(device), parameters(device)
        self.optimizer, self.reference = pair.make(self.params), pair.torchs(self.expected)

    def step(self, seed: int, absent: tuple[int, ...] = ()) -> None:
        """Take a step in which some parameters have no gradient."""
        for tensors, step in (
            (self.expected, self.reference.step),
            (self.params, self.optimizer.step),
        ):
            give_gradients(tensors, seed)
            for place in absent:
                tensors[place].grad = None
            step()

    def are_equal(self) -> bool:
        return all(torch.equal(*pair) for pair in zip(self.params, self.expected, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@each_pair
def test_steps_are_those_of_torch_while_gradients_come_and_go(pair: Pair, device: str) -> None:
    both = Both(pair, device)
    for seed, absent in enumerate([(), (0, 1, 2), (1,), (), (0, 2), (1,)]):
        both.step(seed, absent)
    assert both.are_equal()


@each_pair
def test_it_resumes_from_a_state_of_torch_adam(pair: Pair) -> None:
    both = Both(pair)
    optimizer = both.optimizer
    for seed in range(STEPS):
        give_gradients(both.expected, seed)
        both.reference.step()
        give_gradients(both.params, 100 + seed)
        optimizer.step()
    for mine, theirs in zip(both.params, both.expected, strict=True):
        mine.data.copy_(theirs)
    state = both.reference.state_dict()["state"]
    optimizer.load({i: {n: slots[n] for n in optimizer.slots} for i, slots in state.items()})
    for seed in range(STEPS, 2 * STEPS):
        both.step(seed)
    assert both.are_equal()


@pytest.mark.parametrize("device", DEVICES)
def test_learning_rate_follows_a_schedule(device: str) -> None:
    schedule = Schedule(points=((0, 0.1), (10, 0.05), (20, 0.0)))
    expected, params = parameters(device), parameters(device)
    adam = FusedAdam(params, schedule)
    reference = torch.optim.Adam(expected, lr=0.1, fused=True)
    for seed, env_steps in enumerate((0, 5, 10, 13, 20, 30)):
        for tensors in (expected, params):
            give_gradients(tensors, seed)
        assert adam.set_rate_at(env_steps) == schedule.at(env_steps)
        assert adam.learning_rate == pytest.approx(schedule.at(env_steps))
        reference.param_groups[0]["lr"] = schedule.at(env_steps)
        adam.step()
        reference.step()
        if seed == 2:
            adam.load(copy.deepcopy(adam.state))
    for mine, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
def test_a_recorded_step_reads_the_learning_rate_again() -> None:
    params = parameters("cuda")
    adam = FusedAdam(params, Schedule(points=((0, 0.1), (10, 0.0)), interpolate=False))
    give_gradients(params, 0)
    adam.set_rate_at(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        adam.step()
        adam.step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam.step()
    for env_steps in (0, 10):
        adam.set_rate_at(env_steps)
        before = params[0].detach().clone()
        graph.replay()
        assert torch.equal(params[0], before) == (env_steps == 10)
