"""Linear networks for agents that clone, and what naive loops say of them. Used by their tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.types import Array, Columns

_OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
CHOICES = EnvSpec(_OBSERVATION, DiscreteSpec(4))
LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)
CONTINUOUS = EnvSpec(_OBSERVATION, BoxSpec((2,), "float32", LOW, HIGH))
CONTEXT = PolicyContext(seed=7)
SPECS = {"choices": CHOICES, "continuous": CONTINUOUS}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
LEARNING_RATE = 1e-3
LOG_STD = -0.5


class Linear(nn.Module):
    """A matrix: of observations, or of observations and actions side by side."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_outputs, n_inputs))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        x = obs if action is None else torch.cat([obs, action], dim=1)
        return x @ self.weight.T


def linear_actor(spec: EnvSpec) -> Linear:
    """Make logits, or means."""
    return Linear(3, 4 if isinstance(spec.action, DiscreteSpec) else 2)


def linear_critic(spec: EnvSpec) -> Linear:
    """Make values of all choices, or of one action."""
    return Linear(3, 4) if isinstance(spec.action, DiscreteSpec) else Linear(5, 1)


def linear_value(spec: EnvSpec) -> Linear:  # noqa: ARG001  # of any space
    """Make the value of a state."""
    return Linear(3, 1)


SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "actor_network": linear_actor,
    "critic_network": linear_critic,
    "initial_log_std": LOG_STD,
    "learning_rate": LEARNING_RATE,
    "tau": 0.1,
}


def randomize(module: nn.Module, seed: int) -> None:
    """Give a module numbers of normal size, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def weight_of(module: Any) -> Array:
    """Return the matrix of one linear network, in double precision."""
    weight: Array = module.weight.detach().numpy().astype(np.float64)
    return weight


def batch_of(spec: EnvSpec, n: int = 5) -> Columns:
    """Make a batch whose last transition is terminal, with actions at the bounds among them."""
    random = np.random.default_rng(n)
    discount = np.full(n, 0.9, np.float32)
    discount[-1] = 0.0
    action = random.uniform(LOW, HIGH, (n, 2)).astype(np.float32)
    action[0] = HIGH
    return {
        "obs": random.normal(size=(n, 3)).astype(np.float32),
        "next_obs": random.normal(size=(n, 3)).astype(np.float32),
        "action": np.arange(n) % 4 if spec == CHOICES else action,
        "reward": random.normal(size=n).astype(np.float32),
        "discount": discount,
    }


def units(action: Array) -> Array:
    """Return an action in units in which its bounds are -1 and 1."""
    return (action.astype(np.float64) - (HIGH + LOW) / 2) / ((HIGH - LOW) / 2)


def log_prob(outputs: Array, action: Array) -> float:
    """Return log pi(a|s) of one action, given the actor's answer."""
    if not action.shape:
        return float(outputs[action] - math.log(sum(math.exp(z) for z in outputs)))
    std = math.exp(LOG_STD)
    logs = [
        -((a - m) ** 2) / (2 * std**2) - math.log(std) - math.log(2 * math.pi) / 2
        for a, m in zip(units(action), outputs, strict=True)
    ]
    return float(sum(logs))


def critics_of(networks: Any) -> list[Array]:
    """Return the matrices of several critics."""
    return [weight_of(each) for each in next(iter(networks.children()))]


def q_of(weight: Array, obs: Array, action: Array) -> float:
    """Return what one critic says of one action."""
    if not action.shape:
        return float((weight @ obs)[action])
    return float((weight @ np.concatenate([obs, units(action)]))[0])


class Naive:
    """One row after another: what the equations of agents with an actor and critics see."""

    def __init__(self, agent: Any, batch: Columns) -> None:
        self.rows = [
            {name: np.array(column[i]) for name, column in batch.items()}
            for i in range(len(batch["obs"]))
        ]
        self.actor = weight_of(agent.actor.network)
        self.critics = critics_of(agent.critics)
        self.targets = critics_of(agent.parts["targets"])


def randomized(agent: Any, *more: nn.Module) -> Any:
    """Give an agent's networks numbers of normal size."""
    parts = agent.actor.network, agent.critics, agent.parts["targets"], *more
    for seed, part in enumerate(parts):
        randomize(part, seed)
    return agent


def slope(loss: Callable[[Array], float], at: Array) -> Array:
    """Return the slope of a loss by central differences."""
    slopes = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = 1e-6
        slopes[index] = (loss(at + step) - loss(at - step)) / 2e-6
    return slopes


def check_moves(before: Array, after: Array, slopes: Array) -> None:
    """Check that Adam's first step went down these slopes: by the learning rate, whatever size."""
    steep = np.abs(slopes) > 1e-4
    assert steep.any()
    np.testing.assert_allclose(
        (after - before)[steep], -LEARNING_RATE * np.sign(slopes[steep]), rtol=0.02
    )


def check_losses_and_steps(naive: Any, agent: Any, metrics: Any) -> None:
    """Check losses, priorities, and that each network went down its own loss alone."""
    errors = np.array([naive.errors(critic) for critic in naive.critics])
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors**2), rel=1e-4)
    assert float(metrics["actor_loss"]) == pytest.approx(naive.actor_loss(naive.actor), rel=1e-4)
    np.testing.assert_allclose(agent.priorities(), np.abs(errors).mean(axis=0), rtol=1e-4)
    slopes = slope(naive.actor_loss, naive.actor)
    check_moves(naive.actor, weight_of(agent.actor.network), slopes)
    for before, after in zip(naive.critics, critics_of(agent.critics), strict=True):
        slopes = slope(lambda critic: sum(error**2 for error in naive.errors(critic)), before)
        check_moves(before, after, slopes)
