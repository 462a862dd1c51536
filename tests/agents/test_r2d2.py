"""What R2D2 adds to the contract of agents: its memory, its sequences, its equations."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.agents.r2d2 import R2D2Agent, R2D2Config, RecurrentQNet
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns
from tests.support.scale import examples

CONTEXT = PolicyContext(seed=3, n_envs=4)
CHOICES = 3
SPEC = EnvSpec(BoxSpec((2,), "float32", np.zeros(2), np.ones(2)), DiscreteSpec(CHOICES))


def small(**more: Any) -> R2D2Config:
    return R2D2Config(
        **{"hidden": (6,), "encoder_hidden": (5,), "memory_units": 4, "device": "cpu", **more}
    )


def observations(*lead: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(*lead, 2)).astype(np.float32)


def sequences(
    config: R2D2Config, seed: int = 0, n: int = 6, length: int = 5, n_step: int = 2
) -> dict[str, Array]:
    """Make what a replay of sequences would hand over, of episodes that begin and end anywhere."""
    random = np.random.default_rng(seed)
    rows, burn_in = config.burn_in + length, config.burn_in
    begins = random.random(n) < 0.4
    first = np.where(begins, burn_in, 0)
    end = random.integers(burn_in + 1, rows + 4, size=n)  # beyond the sequence: continues
    terminated = random.random(n) < 0.5
    t = np.arange(rows)
    mask = (t >= first[:, None]) & (t < end[:, None])
    cut = np.minimum(t + n_step, end[:, None])
    over = (t + n_step >= end[:, None]) & terminated[:, None]
    (size,) = config.extra_columns(SPEC)[0].shape
    return {
        "obs": observations(n, rows + n_step, seed=seed),
        "action": random.integers(CHOICES, size=(n, rows)),
        "reward": (random.normal(size=(n, rows)) * 3).astype(np.float32),
        "discount": np.where(over, 0.0, 0.9).astype(np.float32),
        "bootstrap": np.where(mask, cut, t),
        "mask": mask,
        "memory": np.where(begins[:, None], 0, random.normal(size=(n, size))).astype(np.float32),
    }


def agent_of(config: R2D2Config, seed: int = 3) -> R2D2Agent:
    """Build an agent whose target network differs from its own."""
    agent = config.build(SPEC, dataclasses.replace(CONTEXT, seed=seed))
    with torch.no_grad():
        for index, parameter in enumerate(agent.target.parameters()):
            parameter.mul_(0.8).add_(0.05 * (index % 3))
    return agent


# --- the equations, written down once more -------------------------------------------------------


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    low, high = -1e9, 1e9  # h rises
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < x else (low, middle)
    return (low + high) / 2


def naive_values(network: RecurrentQNet, batch: Columns, row: int) -> dict[int, Array]:
    """Return the values of a sequence at its rows, from its first real one on."""
    obs, memory = (torch.from_numpy(batch[name][row]) for name in ("obs", "memory"))
    memory, values = memory[None], {}
    with torch.no_grad():
        for t in range(int(batch["mask"][row].argmax()), len(obs)):
            q, memory = network.step(obs[t][None], memory)
            values[t] = q[0].double().numpy()
    return values


def naive_loss(agent: R2D2Agent, batch: Columns, weight: Array) -> tuple[float, list[float]]:
    config = agent.config
    total, n_rows, priorities = 0.0, 0, []
    for row in range(len(batch["obs"])):
        q = naive_values(agent.net, batch, row)
        slow = naive_values(agent.target, batch, row)
        errors = []
        for t in range(config.burn_in, batch["mask"].shape[1]):
            if not batch["mask"][row, t]:
                continue
            ahead = batch["bootstrap"][row, t]
            best = (q if config.double else slow)[ahead].argmax()
            reward, discount = batch["reward"][row, t], batch["discount"][row, t]
            if config.rescale_values:
                y = h(reward + discount * h_inverse(slow[ahead][best]))
            else:
                y = reward + discount * slow[ahead][best]
            errors.append(abs(q[t][batch["action"][row, t]] - y))
        total += weight[row] * sum(e**2 for e in errors)
        n_rows += len(errors)
        priorities.append(0.9 * max(errors) + 0.1 * sum(errors) / len(errors))
    return total / n_rows, priorities


@given(
    seed=st.integers(0, 2**16),
    burn_in=st.integers(0, 3),
    kind=st.sampled_from(["gru", "lstm"]),
    more=st.sampled_from([{}, {"double": False}, {"rescale_values": False}]),
    weighted=st.booleans(),
)
@settings(max_examples=examples(40, 20), deadline=None)
def test_loss_and_priorities_are_those_of_the_paper(
    seed: int, burn_in: int, kind: str, more: dict[str, Any], weighted: bool
) -> None:
    agent = agent_of(small(burn_in=burn_in, memory=kind, **more), seed)
    batch = sequences(agent.config, seed)
    weight = np.random.default_rng(seed).random(6).astype(np.float32)
    loss, priorities = naive_loss(agent, batch, weight if weighted else np.ones(6))
    record = agent.opt({**batch, "weight": weight} if weighted else batch)
    assert record["loss"].item() == pytest.approx(loss, rel=1e-4)
    # Errors are differences of values near 1, each rounded to 6e-8 several times.
    np.testing.assert_allclose(agent.priorities(), priorities, rtol=1e-4, atol=1e-6)


# --- sequences -----------------------------------------------------------------------------------


def test_burn_in_warms_the_memory_up_without_gradients() -> None:
    agent = agent_of(small(burn_in=3))
    batch = sequences(agent.config, n=2)
    batch["mask"][:] = True
    data = {name: torch.from_numpy(column) for name, column in batch.items()}
    data["memory"].requires_grad_()
    obs = data["obs"].requires_grad_()
    q = agent.unroll(agent.net, obs, data)
    q.sum().backward()
    assert data["memory"].grad is not None
    assert not data["memory"].grad.any()
    assert obs.grad is not None
    assert not obs.grad[:, :3].any()
    assert obs.grad[:, 3:].any(dim=2).all()
    with torch.no_grad():
        other = obs.detach().clone()
        other[:, 0] += 1.0
        assert not torch.allclose(agent.unroll(agent.net, other, data), q)


# --- what cannot work ----------------------------------------------------------------------------


def test_batches_of_another_burn_in_are_refused() -> None:
    config = small(burn_in=2)
    batch = sequences(config)
    batch["mask"][0, :2] = False
    for burn_in in (0, 3):
        other = small(burn_in=burn_in).build(SPEC, CONTEXT)
        with pytest.raises(ConfigError, match=f"burn_in={burn_in} and replay.burn_in differ"):
            other.opt(batch)
