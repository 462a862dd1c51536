"""What R2D2 adds to the contract of agents: its memory, its sequences, its equations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asyncrl.agents.r2d2 import R2D2Agent, R2D2Config
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentConfig
from asyncrl.core.types import Array, Columns
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from tests.support.scale import examples

CONTEXT = PolicyContext(seed=3, n_envs=4)
CHOICES = 3


def spec_with(shape: tuple[int, ...] = (2,), dtype: str = "float32") -> EnvSpec:
    return EnvSpec(BoxSpec(shape, dtype, np.zeros(shape), np.ones(shape)), DiscreteSpec(CHOICES))


SPEC = spec_with()


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
        "reward": np.where(mask, random.normal(size=(n, rows)) * 3, 0).astype(np.float32),
        "discount": np.where(mask & ~over, 0.9, 0.0).astype(np.float32),
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


class Naive:
    """A network's numbers, and what they make of one row after the other."""

    def __init__(self, network: nn.Module, kind: str) -> None:
        self._p = {name: p.detach().double().numpy() for name, p in network.named_parameters()}
        self._kind = kind

    def step(self, obs: Array, memory: Array) -> tuple[Array, Array]:
        """Return the values of one observation, and the memory after it."""
        x = np.maximum(self._linear("encoder.0.0", obs), 0)
        gates = {
            side: self._p[f"core._rnn.weight_{side}_l0"] @ value
            + self._p[f"core._rnn.bias_{side}_l0"]
            for side, value in (("ih", x), ("hh", memory[: len(memory) // self._parts]))
        }
        memory = getattr(self, f"_{self._kind}")(gates["ih"], gates["hh"], memory)
        out = memory[: len(memory) // self._parts]
        value = self._stream("value", out)
        advantage = self._stream("advantage", out)
        return value + advantage - advantage.mean(), memory

    @property
    def _parts(self) -> int:
        return 2 if self._kind == "lstm" else 1

    def _lstm(self, from_input: Array, from_memory: Array, memory: Array) -> Array:
        i, f, g, o = np.split(from_input + from_memory, 4)
        cell = sigmoid(f) * np.split(memory, 2)[1] + sigmoid(i) * np.tanh(g)
        return np.concatenate([sigmoid(o) * np.tanh(cell), cell])

    def _gru(self, from_input: Array, from_memory: Array, memory: Array) -> Array:
        (ri, zi, ni), (rh, zh, nh) = np.split(from_input, 3), np.split(from_memory, 3)
        r, z = sigmoid(ri + rh), sigmoid(zi + zh)
        after: Array = (1 - z) * np.tanh(ni + r * nh) + z * memory
        return after

    def _stream(self, name: str, x: Array) -> Array:
        head = next(key for key in self._p if key.endswith(f"{name}.0.weight"))
        prefix = head.removesuffix("0.weight")
        return self._linear(f"{prefix}2", np.maximum(self._linear(f"{prefix}0", x), 0))

    def _linear(self, name: str, x: Array) -> Array:
        y: Array = self._p[f"{name}.weight"] @ x + self._p[f"{name}.bias"]
        return y


def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    low, high = -1e9, 1e9  # h rises
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < x else (low, middle)
    return (low + high) / 2


def naive_values(naive: Naive, batch: Columns, row: int) -> dict[int, Array]:
    """Return the values of a sequence at its rows, from its first real one on."""
    memory = batch["memory"][row].astype(np.float64)
    values = {}
    for t in range(int(batch["mask"][row].argmax()), batch["obs"].shape[1]):
        values[t], memory = naive.step(batch["obs"][row, t].astype(np.float64), memory)
    return values


def naive_loss(agent: R2D2Agent, batch: Columns, weight: Array) -> tuple[float, list[float]]:
    config = agent.config
    total, n_rows, priorities = 0.0, 0, []
    for row in range(len(batch["obs"])):
        q = naive_values(Naive(agent.net, config.memory), batch, row)
        slow = naive_values(Naive(agent.target, config.memory), batch, row)
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


def gradient_of(agent: R2D2Agent) -> Tensor:
    return torch.cat([p.grad.flatten() for p in agent.net.parameters() if p.grad is not None])


def test_rows_that_are_no_transitions_contribute_nothing() -> None:
    config = small(burn_in=2, max_grad_norm=0.0)
    batch = sequences(config, seed=5, n=40)
    mask = batch["mask"]
    random = np.random.default_rng(0)
    rows = np.arange(batch["obs"].shape[1])
    last = np.where(mask, batch["bootstrap"], 0).max(axis=1)
    unread = (rows < mask.argmax(axis=1)[:, None]) | (rows > last[:, None])
    other = dict(batch)
    other["obs"] = np.where(unread[..., None], random.normal(size=(*unread.shape, 2)), batch["obs"])
    other["obs"] = other["obs"].astype(np.float32)
    for name in ("reward", "discount"):
        noise = random.normal(size=mask.shape).astype(np.float32)
        other[name] = np.where(mask, batch[name], noise)
    other["action"] = np.where(mask, batch["action"], random.integers(CHOICES, size=mask.shape))
    assert unread[:, :2].any(), "no sequence begins an episode"
    assert unread[:, 2:].any(), "no episode ends"
    metrics = []
    for columns in (batch, other):
        agent = agent_of(config)
        record = agent.opt(columns)
        metrics.append((record["loss"], torch.from_numpy(agent.priorities()), gradient_of(agent)))
    for mine, theirs in zip(*metrics, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_stored_memory_is_what_the_policy_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[R2D2Agent, Columns]] = []

    def look(agent: R2D2Agent, batch: Columns) -> Mapping[str, Tensor]:
        seen.append((agent, batch))
        return {"loss": torch.zeros(())}

    def columns(config: R2D2Config, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return tuple(dataclasses.replace(column, start=False) for column in declared(config, spec))

    monkeypatch.setattr(R2D2Agent, "opt", look)
    declared = R2D2Config.extra_columns
    # Memories of all rows, to see how each follows from the one before.
    monkeypatch.setattr(R2D2Config, "extra_columns", columns)
    config = SyncConfig(
        replay=SequenceReplayConfig(sequence_length=6, stride=3, burn_in=2),
        trainer=TrainerConfig(
            segment=SegmentConfig(length=8), opt_interval_env_steps=100, warmup_env_steps=300
        ),
    )
    make_env = EnvConfig(id="CartPole-v1", n_envs=4).build
    train_sync(small(), make_env, config, stop=MaxOptSteps(4))
    assert len(seen) == 4
    for agent, batch in seen:
        mask = batch["mask"]
        obs, memory = (torch.from_numpy(batch[name]) for name in ("obs", "memory"))
        begins = ~mask[:, 0]
        assert begins.any(), "no sequence begins an episode"
        assert not memory[begins, 2].any()
        assert memory[~begins, 0].any(dim=1).all()
        follows = torch.from_numpy(mask[:, :-1] & mask[:, 1:])
        with torch.no_grad():
            _, after = agent.net.step(obs[:, : mask.shape[1] - 1][follows], memory[:, :-1][follows])
        torch.testing.assert_close(after, memory[:, 1:][follows])


# --- acting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_acts_on_what_it_remembers_and_reports_what_that_was(kind: str) -> None:
    policy = small(memory=kind).build_policy(SPEC, CONTEXT)
    naive = Naive(policy.net, kind)
    (size,) = small(memory=kind).extra_columns(SPEC)[0].shape
    expected = np.zeros((4, size))
    begins = {0: [True] * 4, 3: [False, True, False, False], 5: [True, False, False, True]}
    for t in range(8):
        where = np.array(begins.get(t, [False] * 4))
        policy.forget(where)
        expected[where] = 0
        obs = observations(4, seed=t)
        metrics = policy.act(obs).extras["memory"]
        np.testing.assert_allclose(metrics, expected, atol=1e-6)
        expected = np.stack([naive.step(o, m)[1] for o, m in zip(obs, expected, strict=True)])


def test_the_best_action_depends_on_what_came_before() -> None:
    agent = small(memory_units=16).build(SPEC, CONTEXT)
    naive = Naive(agent.net, "lstm")
    obs = observations(40, 6, seed=1)
    with evaluation_mode(agent):
        actions = np.stack([agent.act(obs[:, t]).action for t in range(6)], axis=1)
    for row in range(40):
        memory = np.zeros(32)
        for t in range(6):
            q, memory = naive.step(obs[row, t], memory)
            assert actions[row, t] == q.argmax()


# --- networks ------------------------------------------------------------------------------------


# --- what cannot work ----------------------------------------------------------------------------


def test_batches_of_another_burn_in_are_refused() -> None:
    config = small(burn_in=2)
    batch = sequences(config)
    batch["mask"][0, :2] = False
    for burn_in in (0, 1, 3, 7):
        other = small(burn_in=burn_in).build(SPEC, CONTEXT)
        with pytest.raises(ConfigError, match=f"burn_in={burn_in} and replay.burn_in differ"):
            other.opt(batch)


# --- that it learns ------------------------------------------------------------------------------
