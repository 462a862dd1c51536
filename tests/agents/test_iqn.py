"""IQN: its loss by hand and against loops, what is drawn and acted on, quantiles learned."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncrl.agents.iqn import IQNAgent, IQNConfig, IQNNetwork, quantile_huber
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.types import Array
from tests.agents.chain import TWO_STATES, random_batch
from tests.support.scale import examples

CONTEXT = PolicyContext(seed=0)
SMALL = IQNConfig(hidden=(8, 8), n_quantiles=3, n_target_quantiles=5, device="cpu")


def loss_by_the_loop(quantiles: Array, target: Array, fractions: Array, kappa: float) -> float:
    """Follow equations 2 and 3 of the paper for one row, pair by pair."""
    total = 0.0
    for z, tau in zip(quantiles, fractions, strict=True):
        for y in target:
            delta = y - z
            size = abs(delta)
            huber = size**2 / 2 if size <= kappa else kappa * (size - kappa / 2)
            total += abs(tau - (1.0 if delta < 0 else 0.0)) * huber / kappa / len(target)
    return total


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.floats(0.1, 5.0), st.integers(0, 99)
)
@settings(max_examples=examples(100), deadline=None)
def test_loss_is_that_of_the_paper(
    n: int, n_target: int, rows: int, kappa: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    quantiles = random.normal(0, 3, (n, rows))
    target = random.normal(0, 3, (n_target, rows))
    fractions = random.random((n, rows))
    tensors = [torch.from_numpy(array) for array in (quantiles, target, fractions)]
    expected = [
        loss_by_the_loop(quantiles[:, b], target[:, b], fractions[:, b], kappa) for b in range(rows)
    ]
    assert quantile_huber(*tensors, kappa=kappa).numpy() == pytest.approx(np.array(expected))


def linear(layer: nn.Module, x: Array) -> Array:
    assert isinstance(layer, nn.Linear)
    result: Array = layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()
    return result


def quantile_by_the_loop(network: IQNNetwork, obs: Array, tau: float) -> Array:
    """Return the quantiles (actions,) at tau, by the paper's equation 4."""
    first, _ = network.encoder[0]
    psi = linear(first, obs).clip(0)
    cosines = np.array([math.cos(math.pi * i * tau) for i in range(64)])
    phi = linear(network.embedding, cosines).clip(0)
    hidden = linear(network.head[0], psi * phi).clip(0)  # type: ignore[index]
    return linear(network.head[2], hidden)  # type: ignore[index]


def small_agent(**changes: Any) -> IQNAgent:
    """Build an agent whose target network is another one."""
    agent = dataclasses.replace(SMALL, **changes).build(TWO_STATES, CONTEXT)
    with torch.no_grad():
        for param in agent.target.parameters():
            param.add_(0.3 * torch.randn(param.shape, generator=torch.Generator().manual_seed(3)))
    return agent


def by_the_loops(agent: IQNAgent, batch: dict[str, Array], fractions: Array) -> list[float]:
    """Return the loss of each row, from the equations."""
    losses = []
    for b in range(len(batch["reward"])):
        choosing = agent.net if agent.config.double else agent.target
        even = [(k + 0.5) / 32 for k in range(32)]
        means = [quantile_by_the_loop(choosing, batch["next_obs"][b], tau) for tau in even]
        best = int(np.mean(means, axis=0).argmax())
        target = [
            batch["reward"][b]
            + batch["discount"][b]
            * quantile_by_the_loop(agent.target, batch["next_obs"][b], tau)[best]
            for tau in fractions[3:, b]
        ]
        taken = [
            quantile_by_the_loop(agent.net, batch["obs"][b], tau)[batch["action"][b]]
            for tau in fractions[:3, b]
        ]
        losses.append(loss_by_the_loop(np.array(taken), np.array(target), fractions[:3, b], 1.0))
    return losses


@pytest.mark.parametrize("double", [False, True])
def test_loss_and_priorities_of_a_batch_are_those_of_the_paper(double: bool) -> None:
    agent, batch = small_agent(double=double), random_batch()
    for name in ("obs", "next_obs"):
        batch[name] /= 100.0
    batch["discount"][:3] = 0.0, 0.9**3, 1.0
    batch["reward"] *= 3.0
    draws = torch.Generator()
    draws.set_state(agent.draws.get_state())
    fractions = torch.rand((8, 8), generator=draws).numpy()
    expected = by_the_loops(agent, batch, fractions)
    assert float(agent.opt(batch)["loss"]) == pytest.approx(np.mean(expected), rel=1e-4)
    assert agent.priorities() == pytest.approx(expected, rel=1e-4)


def test_value_is_the_mean_of_quantiles_at_even_fractions() -> None:
    agent = dataclasses.replace(SMALL, n_acting_quantiles=4).build(TWO_STATES, CONTEXT)
    obs = np.array([[0.3, 0.9], [0.5, 0.1]], np.float32)
    with torch.no_grad():
        q = agent.model(torch.from_numpy(obs)).numpy()
    even = (0.125, 0.375, 0.625, 0.875)
    expected = [
        np.mean([quantile_by_the_loop(agent.net, row, tau) for tau in even], axis=0) for row in obs
    ]
    assert q == pytest.approx(np.array(expected), abs=1e-5)
    with evaluation_mode(agent):
        assert agent.act(obs).action.tolist() == np.argmax(expected, axis=1).tolist()
