"""Gradients in parts: the same as in one piece, with less kept for them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.updater import InParts
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.types import Array, Columns

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
    answer = InParts(parts)(net, rows())
    answer.square().mean().backward()  # type: ignore[no-untyped-call]
    return answer.detach(), [
        param.grad.clone() for param in net.parameters() if param.grad is not None
    ]


@pytest.mark.parametrize("parts", [1, 2, 5, ROWS, 3 * ROWS])
def test_gradients_add_up_to_those_of_the_whole_batch(parts: int) -> None:
    net = network()
    answer, expected = net(rows()), gradients(net, 1)[1]
    told, found = gradients(net, parts)
    torch.testing.assert_close(told, answer)
    assert len(found) == len(expected) == 6
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_step_of_an_optimizer_is_the_same_within_rounding() -> None:
    nets = [network(), network()]
    for net, parts in zip(nets, (1, 4), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            gradients(net, parts)
            optimizer.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_rows_may_lie_along_another_dimension_and_inputs_may_be_named() -> None:
    class Critics(nn.Module):
        def forward(self, obs: dict[str, Tensor], action: Tensor) -> Tensor:
            return torch.stack([obs["a"].sum(1) * action[:, 0], obs["b"][:, 0] + action[:, 0]])

    obs, action = {"a": rows(), "b": rows(2)}, rows(1).requires_grad_()
    found = InParts(4)(Critics(), obs, action, dim=1)
    torch.testing.assert_close(found, Critics()(obs, action))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert action.grad is not None
    torch.testing.assert_close(action.grad[:, 0], obs["a"].sum(1) + 1)


def test_gradients_reach_only_what_was_asked_for() -> None:
    actor, critic = network(), nn.Linear(3, 1)
    value = InParts(3)(critic, InParts(3)(actor, rows()))
    torch.autograd.backward(value.mean(), inputs=[*actor.parameters()])
    assert all(param.grad is not None for param in actor.parameters())
    assert all(param.grad is None for param in critic.parameters())


def test_parts_keep_less_for_the_gradient() -> None:
    def kept(parts: int) -> int:
        sizes: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            InParts(parts)(copy.deepcopy(network()), rows())
        return sum(sizes)

    assert kept(4) < kept(1) / 4


def test_nothing_is_recomputed_where_there_is_no_gradient() -> None:
    calls: list[int] = []

    def counting(one: Tensor) -> Tensor:
        calls.append(len(one))
        return one.square()

    with torch.no_grad():
        assert torch.equal(InParts(4)(counting, rows()), rows().square())
    assert calls == [10, 9, 9, 9]
    InParts(4)(counting, rows().requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(calls[4:]) == sorted(2 * [10, 9, 9, 9])


# --- agents --------------------------------------------------------------------------------------

IMAGES = EnvSpec(
    BoxSpec((1, 36, 36), "uint8", np.zeros((1, 36, 36)), np.full((1, 36, 36), 255)),
    DiscreteSpec(3),
)
NUMBERS = EnvSpec(
    BoxSpec((4,), "float32", np.full(4, -np.inf), np.full(4, np.inf)), DiscreteSpec(3)
)
BOX = BoxSpec((2,), "float32", np.full(2, -1, np.float32), np.full(2, 1, np.float32))
QUANTITIES = EnvSpec(NUMBERS.observation, BOX)
CASES: dict[str, tuple[Any, EnvSpec]] = {
    "dqn": (DQNConfig(device="cpu", hidden=(16,), dueling=True, noisy=True), NUMBERS),
    "dqn, normalised": (DQNConfig(device="cpu", normalize_obs=True, loss="huber"), NUMBERS),
    "sac": (SACConfig(device="cpu", hidden=(32, 32), max_grad_norm=1.0), QUANTITIES),
    "sac, normalised": (SACConfig(device="cpu", hidden=(32,), normalize_obs=True), QUANTITIES),
    "td3": (TD3Config(device="cpu", hidden=(32, 32)), QUANTITIES),
    "dqn, images": (DQNConfig(device="cpu", hidden=(16,)), IMAGES),
}


def random_batch(spec: EnvSpec, seed: int) -> Columns:
    random = np.random.default_rng(seed)
    obs = random.integers(0, 255, (2, ROWS, *spec.observation.shape)).astype(spec.observation.dtype)
    if isinstance(spec.action, DiscreteSpec):
        action: Array = random.integers(0, spec.action.n, ROWS)
    else:
        action = random.uniform(-1, 1, (ROWS, *spec.action.shape)).astype(np.float32)
    return {
        "obs": obs[0] if obs.dtype == np.uint8 else obs[0] / 255,
        "next_obs": obs[1] if obs.dtype == np.uint8 else obs[1] / 255,
        "action": action,
        "reward": random.standard_normal(ROWS, np.float32),
        "discount": random.choice(np.array([0.0, 0.99], np.float32), ROWS),
        "weight": random.random(ROWS, np.float32),
    }


@pytest.mark.parametrize("case", CASES)
def test_optimisation_steps_are_those_of_whole_batches(case: str) -> None:
    config, spec = CASES[case]
    in_parts = dataclasses.replace(config, accumulate=5)
    agents = [one.build(spec, PolicyContext(seed=3)) for one in (config, in_parts)]
    for seed in range(3):
        batch = random_batch(spec, seed)
        expected, told = ({k: float(v) for k, v in a.opt(batch).items()} for a in agents)
        assert told == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert agents[1].priorities() == pytest.approx(agents[0].priorities(), rel=1e-4, abs=1e-5)
    expected_state = agents[0].state()
    for name, value in agents[1].state().items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, expected_state[name], rtol=2e-3, atol=2e-5)
