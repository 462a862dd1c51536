"""PPO's losses are the papers', each transition counts once an epoch, and runs get better."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from asyncrl.agents.parts.policy_gradient import Minibatches, TrajectoryBatch, outputs_of
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.parts.updater import ChunkedForward
from asyncrl.agents.ppo import (
    PPOAgent,
    PPOConfig,
    corrected_estimates,
    divergence,
    surrogate,
    value_errors,
)
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.types import Array, Columns
from tests.agents.parts.test_returns import Rows, tensors, trajectories

OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
SPEC = EnvSpec(OBSERVATION, DiscreteSpec(2))
CONFIG = PPOConfig(hidden=(8,), device="cpu", epochs=1, minibatches=1)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(("advantage", "dual_clip"), [(2.0, 0.0), (2.0, 3.0), (-2.0, 3.0)])
def test_objective_is_flat_beyond_the_clips_however_far(advantage: float, dual_clip: float) -> None:
    log_ratio = tensor(1.0, 100.0, 1e4).requires_grad_()  # exp(100) exceeds float32
    most = tensor(advantage + 0.2 * abs(advantage))
    surrogate(log_ratio, tensor(advantage), most, dual_clip).sum().backward()
    assert log_ratio.grad is not None
    expected = [0.0, 0.0, 0.0] if advantage > 0 else [-2.0 * math.e, 0.0, 0.0]
    assert log_ratio.grad.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "clip", "expected"),
    [(3.0, 0.0, 4.0), (3.0, 0.5, 12.25), (1.3, 0.5, 13.69), (1.7, 9.0, 10.89), (0.0, 0.5, 25.0)],
)
def test_value_error_by_hand(value: float, clip: float, expected: float) -> None:
    errors = value_errors(tensor(value), tensor(1.0), tensor(5.0), clip)
    assert errors.item() == pytest.approx(expected, rel=1e-5)


def test_divergence_is_that_of_two_known_policies() -> None:
    mu, pi = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.1, 0.4])
    metrics = divergence(torch.from_numpy(np.log(pi / mu))).numpy()
    assert (metrics >= 0).all()
    assert (mu * metrics).sum() == pytest.approx((mu * np.log(mu / pi)).sum())


def naive_estimates(
    data: Columns, lambda_: float, clip_rho: float, clip_c: float
) -> tuple[Array, Array]:
    """Sum up each row's later corrections, one by one; Espeholt et al. (2018), equation 1."""
    mask, value = data["mask"], data["values"]
    ratio = np.exp(data["log_ratio"])
    targets, advantages = value[:, :-1].copy(), np.zeros(mask.shape)
    for b, s in np.argwhere(mask):
        weight, correction, later = 1.0, 0.0, 0.0
        for t in range(s, mask.shape[1]):
            if not mask[b, t]:
                break
            error = data["reward"][b, t] + data["discount"][b, t] * value[b, t + 1] - value[b, t]
            term = min(clip_rho, ratio[b, t]) * error
            correction += weight * term
            if t > s:
                later += weight / min(clip_c, ratio[b, s]) * term
            weight *= data["discount"][b, t] * lambda_ * min(clip_c, ratio[b, t])
        error = data["reward"][b, s] + data["discount"][b, s] * value[b, s + 1] - value[b, s]
        targets[b, s] += correction
        advantages[b, s] = error + later
    return advantages, targets


@given(
    rows=trajectories(),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    clip_rho=st.sampled_from([0.5, 1.0, 2.0]),
    clip_c=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_corrected_estimates_are_the_sums_of_the_paper(
    rows: Rows, lambda_: float, clip_rho: float, clip_c: float
) -> None:
    data = tensors(rows)._asdict()
    data["log_ratio"] = torch.from_numpy(np.where(rows.mask, rows.log_rhos, 0.0))
    metrics = corrected_estimates(**data, lambda_=lambda_, clip_rho=clip_rho, clip_c=clip_c)
    arrays = {name: tensor.numpy() for name, tensor in data.items()}
    advantages, targets = naive_estimates(arrays, lambda_, clip_rho, clip_c)
    assert np.allclose(metrics.targets, targets)
    assert np.allclose(metrics.advantages, advantages)


def agent_for(config: PPOConfig = CONFIG, spec: EnvSpec = SPEC, **changes: Any) -> PPOAgent:
    return dataclasses.replace(config, **changes).build(spec, PolicyContext(seed=1, n_envs=4))


def batch_for(agent: PPOAgent, seed: int = 0, n: int = 3, length: int = 6) -> Columns:
    """Let an agent play trajectories of random observations, some rows of which are gaps."""
    random = np.random.default_rng(seed)
    obs = random.normal(size=(n, length + 1, 3)).astype(np.float32)
    rows: dict[str, list[Array]] = {}
    agent.forget(np.ones(n, bool))
    mask = random.random((n, length)) < 0.8
    for t in range(length):
        act = agent.act(obs[:, t])
        for name, column in {"action": act.action, **act.extras}.items():
            rows.setdefault(name, []).append(column)
        agent.forget(~mask[:, t])
    columns = {name: np.stack(column, axis=1) for name, column in rows.items()}
    if "memory" in columns:
        columns["memory"] = columns["memory"][:, 0]
    ends = random.random(mask.shape) < 0.2
    return {
        **columns,
        "obs": obs,
        "mask": mask,
        "reward": (mask * random.normal(size=mask.shape)).astype(np.float32),
        "discount": (0.9 * (mask & ~ends)).astype(np.float32),
    }


with_and_without_memory = pytest.mark.parametrize(
    "memory", [{}, {"memory": "gru"}, {"memory": "lstm"}], ids=["none", "gru", "lstm"]
)


@with_and_without_memory
@pytest.mark.parametrize(("parts", "chunks"), [(1, 1), (5, 3), (100, 1)])
def test_minibatches_are_of_each_transition_once_as_in_whole_trajectories(
    memory: dict[str, Any], parts: int, chunks: int
) -> None:
    agent = agent_for(**memory)
    batch = {name: torch.from_numpy(column) for name, column in batch_for(agent, n=5).items()}
    mask, start = batch["mask"], batch.get("memory", torch.zeros(5, 0))
    whole = TrajectoryBatch(batch["obs"], mask, start)
    outputs, values = agent.net.unroll(whole.obs, whole.memory, whole.begins)
    number = torch.arange(mask.numel()).reshape(mask.shape)
    minibatches = Minibatches(whole, {"number": number})
    order = torch.Generator().manual_seed(0)
    epochs = []
    for _ in range(2):
        taken: list[int] = []
        for part in minibatches.shuffle(min(parts, len(minibatches)), order):
            some = minibatches.take(part)
            some_outputs, some_values = outputs_of(agent.net, some, ChunkedForward(chunks))
            rows = some["number"]
            assert len(some_outputs) == len(some_values) == len(rows) > 0
            assert torch.allclose(some_outputs, outputs[:, :-1].flatten(0, 1)[rows], atol=1e-6)
            assert torch.allclose(some_values, values[:, :-1].flatten()[rows], atol=1e-6)
            taken += rows.tolist()
        assert sorted(taken) == number[mask].tolist()
        epochs.append(taken)
    assert (epochs[0] != epochs[1]) or memory, "of few stretches, two orders may be the same"


@with_and_without_memory
def test_update_has_the_loss_of_a_naive_implementation(memory: dict[str, Any]) -> None:
    """Of a policy that is newer than the one that played, in the first and in the second step."""
    dual_clip = 1.05 if memory else 0.0
    settings: dict[str, Any] = {"normalize_values": False, "clip": 0.1, "learning_rate": 0.02}
    settings["entropy_weight"] = Schedule.linear(0.02, 0.0, 100)
    agents = [
        agent_for(**memory, **settings, dual_clip=dual_clip, epochs=epochs) for epochs in (1, 2)
    ]
    with torch.no_grad():
        agents[0].net.policy.bias[0] = 1.0
    batch = batch_for(agents[0], seed=1, n=4, length=8)
    tensors = {name: torch.from_numpy(column) for name, column in batch.items()}
    begins = np.concatenate([np.zeros((4, 1), bool), ~batch["mask"]], axis=1)
    start = tensors.get("memory", torch.zeros(4, 0))

    @torch.no_grad()
    def unrolled() -> tuple[Array, Array]:
        outputs, values = agents[0].net.unroll(tensors["obs"], start, torch.from_numpy(begins))
        return outputs.softmax(dim=-1).double().numpy(), values.double().numpy()

    for agent in agents:
        agent.env_steps = 50
        with torch.no_grad():
            agent.net.policy.bias.zero_()
            agent.net.policy.weight.normal_(std=2.0, generator=torch.Generator().manual_seed(0))
    newest, values = unrolled()
    first, both = agents[0].opt(batch), agents[1].opt(batch)
    now, _ = unrolled()

    mask = batch["mask"]
    on_policy = {**batch, "values": values, "log_ratio": np.zeros(mask.shape)}
    advantages, _ = naive_estimates(on_policy, 0.95, 1.0, 1.0)
    mean, std = advantages[mask].mean(), advantages[mask].std()
    gains, errors, entropies, clipped, weights = [], [], [], [], []
    for b, t in np.argwhere(mask):
        p, action = newest[b, t], batch["action"][b, t]
        ratio = now[b, t, action] / p[action]
        advantage = (advantages[b, t] - mean) / std
        gain = min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)
        if dual_clip and advantage < 0:
            gain = max(gain, dual_clip * advantage)
        weights.append(p[action] / np.exp(batch["log_prob"][b, t]))
        gains.append(np.array([advantage, gain]) * min(weights[-1], 2.0))
        errors.append(advantages[b, t] ** 2)  # y - V, since y = A + V
        entropies.append(-(p * np.log(p)).sum())
        clipped.append(abs(ratio - 1) > 0.1)
    assert max(weights) > 2.0
    assert 0.0 < np.mean(clipped) < 1.0
    losses = [float(first["policy_loss"]), float(2 * both["policy_loss"] - first["policy_loss"])]
    assert losses == pytest.approx(-np.mean(gains, axis=0), abs=1e-4)
    assert float(first["clip_fraction"]) == 0.0
    assert 2 * float(both["clip_fraction"]) == pytest.approx(np.mean(clipped), abs=1e-6)
    assert float(first["value_loss"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert float(first["entropy"]) == pytest.approx(np.mean(entropies), rel=1e-4)
    loss = losses[0] + 0.5 * np.mean(errors) - 0.01 * np.mean(entropies)
    assert float(first["loss"]) == pytest.approx(loss, abs=1e-4)
    targets = (advantages + values[:, :-1])[mask]
    explained = 1 - advantages[mask].var() / targets.var()
    assert float(first["explained_variance"]) == pytest.approx(explained, abs=1e-4)


def test_gradient_steps_are_epochs_times_parts_unless_the_policy_has_gone_far() -> None:
    settings: dict[str, Any] = {"epochs": 5, "minibatches": 3, "learning_rate": 0.05}
    for target_kl, steps in [(0.0, 15), (1e9, 15), (1e-9, 3)]:
        agent = agent_for(**settings, target_kl=target_kl)
        assert float(agent.opt(batch_for(agent))["grad_steps"]) == steps


def test_rare_values_are_learned_at_their_true_size() -> None:
    # 1 of 900 rows is worth 1: that is 30 standard deviations from the mean of all.
    agent = agent_for(shared_torso=True)
    batch = batch_for(agent, n=1, length=900)
    reward = np.zeros((1, 900), np.float32)
    reward[0, 0] = 1.0
    batch = {**batch, "mask": np.ones((1, 900), bool), "reward": reward}
    batch["discount"] = np.zeros((1, 900), np.float32)
    with torch.no_grad():
        for param in agent.net.value.parameters():
            param.zero_()
    metrics = agent.opt(batch)
    # In units of the deviation s, with p = 1 / 900, values are 0: the mean of (y - p)^2 / s^2 is 1.
    assert float(metrics["value_loss"]) == pytest.approx(1.0, rel=1e-3)


@with_and_without_memory
def test_networks_start_orthogonal_and_policies_nearly_uniform(memory: dict[str, Any]) -> None:
    agent = agent_for(hidden=(16, 8), **memory)
    for torso in agent.net.torsos:
        rows = torso.state_dict()["hidden.1.weight"]
        assert torch.allclose(rows @ rows.T, 2.0 * torch.eye(8), atol=1e-5)
    assert len(agent.net.torsos) == (1 if memory else 2)
    entropy = float(agent.opt(batch_for(agent))["entropy"])
    assert entropy == pytest.approx(math.log(2.0), abs=1e-3)
