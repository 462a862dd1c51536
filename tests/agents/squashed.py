"""Equations of squashed Gaussian policies, one number after another, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.core.types import Array, Columns
from tests.agents.cloning import LEARNING_RATE, slope


def randomize(module: nn.Module, seed: int) -> None:
    """Give a module parameters, and running numbers if it has some, far from its first ones."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(random.normal(0.0, 0.6, parameter.shape)))
        for name, buffer in module.named_buffers():
            if name.endswith(("mean", "var")):
                buffer.copy_(torch.from_numpy(random.uniform(0.5, 1.5, buffer.shape)))


def arrays_of(module: nn.Module) -> list[Array]:
    """Return a copy of a module's parameters."""
    return [parameter.detach().numpy().astype(np.float64) for parameter in module.parameters()]


def drawn_noise(seed: int, rows: int, dimensions: int) -> Array:
    """Return what an agent of that seed draws for its first step: of the targets, of the policy."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, dimensions, generator=generator).numpy().astype(np.float64)


def scaled(action: Array, low: Sequence[float], high: Sequence[float]) -> Array:
    """Return an action in units in which its bounds are -1 and 1."""
    bounds = zip(action, low, high, strict=True)
    return np.array([2 * (value - least) / (most - least) - 1 for value, least, most in bounds])


def sampled(answer: Array, noise: Array) -> tuple[Array, float]:
    """Return tanh u, u from N(mean, std), and its log density: log N(u) - log |da / du|."""
    size = len(noise)
    action, log_prob = np.zeros(size), 0.0
    for j in range(size):
        mean, log_std = answer[j], min(max(answer[size + j], -5.0), 2.0)
        u = mean + math.exp(log_std) * noise[j]
        action[j] = math.tanh(u)
        log_prob += -((u - mean) ** 2) / (2 * math.exp(2 * log_std))
        log_prob -= log_std + math.log(2 * math.pi) / 2
        log_prob += 2 * math.log(math.cosh(u))  # da / du = 1 - tanh^2 u = 1 / cosh^2 u
    return action, log_prob


def check_step(
    before: list[Array], after: list[Array], loss: Callable[[list[Array]], float]
) -> None:
    """Check that Adam's first step went down a loss: by the learning rate, in each parameter."""
    steep_ones = 0
    for k, (old, new) in enumerate(zip(before, after, strict=True)):

        def varied(value: Array, k: int = k) -> float:
            return loss([*before[:k], value, *before[k + 1 :]])

        slopes = slope(varied, old)
        steep = np.abs(slopes) > 1e-3
        steep_ones += steep.sum()
        np.testing.assert_allclose(
            (new - old)[steep], -LEARNING_RATE * np.sign(slopes[steep]), rtol=0.02
        )
    assert steep_ones > sum(old.size for old in before) / 2


RATES: dict[str, float] = dict.fromkeys(
    ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"), LEARNING_RATE
)


def check_losses_and_steps(naive: Any, agent: Any, batch: Columns, target_entropy: float) -> None:
    """Let an agent with a temperature of 0.3 learn, and check it against the equations."""
    metrics = {name: float(value) for name, value in agent.opt(batch).items()}
    assert metrics["critic_loss"] == pytest.approx(naive.critic_loss(naive.critics), rel=1e-4)
    check_step(naive.critics, arrays_of(agent.critics), naive.critic_loss)
    # The policy climbs the critics as they are by then.
    critics = arrays_of(agent.critics)
    assert metrics["actor_loss"] == pytest.approx(naive.actor_loss(naive.actor, critics), rel=1e-4)
    check_step(naive.actor, arrays_of(agent.model), lambda a: naive.actor_loss(a, critics))
    log_probs = naive.log_probs(naive.actor)
    assert metrics["entropy"] == pytest.approx(-np.mean(log_probs), rel=1e-4)
    # d/dlog_alpha of -log_alpha * (log_prob + target_entropy)
    slope = -(np.mean(log_probs) + target_entropy)
    moved = float(agent.state()["log_alpha/value"]) - math.log(0.3)
    assert moved == pytest.approx(-LEARNING_RATE * np.sign(slope), rel=1e-2)


def weighted(batch: Columns) -> Columns:
    """Give the six rows of a batch discounts and weights of all sizes."""
    discount = np.array([0.9, 0.0, 0.9, 0.81, 0.9, 0.9], np.float32)
    return {**batch, "discount": discount, "weight": np.linspace(0.2, 1.0, 6, dtype=np.float32)}
