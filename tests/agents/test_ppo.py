"""PPO's losses are the papers', each transition counts once an epoch, and runs get better."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from asyncrl.actor import trajectory_processor
from asyncrl.agents.parts.policy_gradient import Minibatches, TrajectoryBatch
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
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxOptSteps,
    MaxSeconds,
)
from asyncrl.learner.train_result import TrainResult
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.training.asynchronous import train_async
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.presets import preset
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync

OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
SPEC = EnvSpec(OBSERVATION, DiscreteSpec(2))
CONFIG = PPOConfig(hidden=(8,), device="cpu", epochs=1, minibatches=1)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "expected"),
    [
        (1.1, 2.0, 0.0, 2.2),  # within the clip
        (1.5, 2.0, 0.0, 2.4),  # better, but far enough already
        (0.5, 2.0, 0.0, 1.0),  # worse: nothing is clipped
        (0.5, -2.0, 0.0, -1.6),
        (1.5, -2.0, 0.0, -3.0),
        (9.0, -2.0, 0.0, -18.0),
        (9.0, -2.0, 3.0, -6.0),  # no deeper than three times the advantage
        (2.0, -2.0, 3.0, -4.0),
        (9.0, 2.0, 3.0, 2.4),
    ],
)
def test_objective_by_hand(
    ratio: float, advantage: float, dual_clip: float, expected: float
) -> None:
    gain = surrogate(tensor(math.log(ratio)), tensor(advantage), 0.2, dual_clip)
    assert gain.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("advantage", "dual_clip"), [(2.0, 0.0), (2.0, 3.0), (-2.0, 3.0)])
def test_objective_is_flat_beyond_the_clips_however_far(advantage: float, dual_clip: float) -> None:
    log_ratio = tensor(1.0, 100.0, 1e4).requires_grad_()  # exp(100) exceeds float32
    surrogate(log_ratio, torch.full((3,), advantage), 0.2, dual_clip).sum().backward()
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


@st.composite
def played(draw: st.DrawFn) -> dict[str, Array]:
    """Return trajectories with episodes that end in both ways, and gaps behind them."""
    n, length = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = random.random((n, length)) < 0.8
    ends = random.random((n, length)) < 0.2
    return {
        "mask": mask,
        "reward": np.where(mask, random.normal(size=mask.shape), 0.0),
        "discount": np.where(mask & ~ends, 0.9, 0.0),
        "values": random.normal(size=(n, length + 1)),
        "log_ratio": np.where(mask, random.normal(size=mask.shape), 0.0),
    }


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
    data=played(),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    clip_rho=st.sampled_from([0.5, 1.0, 2.0]),
    clip_c=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_corrected_estimates_are_the_sums_of_the_paper(
    data: dict[str, Array], lambda_: float, clip_rho: float, clip_c: float
) -> None:
    tensors = {name: torch.from_numpy(value) for name, value in data.items()}
    metrics = corrected_estimates(**tensors, lambda_=lambda_, clip_rho=clip_rho, clip_c=clip_c)
    advantages, targets = naive_estimates(data, lambda_, clip_rho, clip_c)
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
@pytest.mark.parametrize("parts", [1, 5, 100])
def test_minibatches_hold_each_transition_once(memory: dict[str, Any], parts: int) -> None:
    agent = agent_for(**memory)
    batch = batch_for(agent)
    mask = torch.from_numpy(batch["mask"])
    number = torch.arange(mask.numel()).reshape(mask.shape)
    start = torch.zeros(len(mask), agent.net.memory_size)
    whole = TrajectoryBatch(torch.from_numpy(batch["obs"]), mask, start)
    minibatches = Minibatches(agent.net, whole, {"number": number}, ChunkedForward(1))
    order = torch.Generator().manual_seed(0)
    epochs = []
    for _ in range(2):
        indices = minibatches.shuffled(min(parts, len(minibatches)), order)
        assert all(len(index) for index in indices)
        taken = torch.cat([minibatches.take(index)[2]["number"] for index in indices])
        assert sorted(taken.tolist()) == number[mask].tolist()
        epochs.append(taken.tolist())
    if not memory:  # of few stretches, two orders may be the same
        assert epochs[0] != epochs[1]


@with_and_without_memory
@pytest.mark.parametrize("in_parts", [1, 3])
def test_minibatches_are_answered_as_whole_trajectories_are(
    memory: dict[str, Any], in_parts: int
) -> None:
    agent = agent_for(**memory)
    batch = {name: torch.from_numpy(column) for name, column in batch_for(agent, n=5).items()}
    start = batch.get("memory", torch.zeros(5, 0))
    whole = TrajectoryBatch(batch["obs"], batch["mask"], start)
    outputs, values = agent.net.unroll(whole.obs, whole.memory, whole.begins)
    number = torch.arange(batch["mask"].numel()).reshape(batch["mask"].shape)
    minibatches = Minibatches(agent.net, whole, {"number": number}, ChunkedForward(in_parts))
    for index in minibatches.shuffled(2, torch.Generator().manual_seed(0)):
        some_outputs, some_values, columns = minibatches.take(index)
        assert len(some_outputs) == len(some_values) == len(columns["number"]) > 0
        expected = outputs[:, :-1].flatten(0, 1)[columns["number"]]
        assert torch.allclose(some_outputs, expected, atol=1e-6)
        assert torch.allclose(some_values, values[:, :-1].flatten()[columns["number"]], atol=1e-6)


@with_and_without_memory
def test_network_unrolls_to_the_probabilities_that_were_played(memory: dict[str, Any]) -> None:
    agent = agent_for(**memory)
    metrics = agent.opt(batch_for(agent, n=4, length=9))
    assert float(metrics["lag_kl"]) == pytest.approx(0.0, abs=1e-9)


@with_and_without_memory
def test_update_has_the_loss_of_a_naive_implementation(memory: dict[str, Any]) -> None:
    """Of a policy that is newer than the one that played, in the first and in the second step."""
    dual_clip = 1.05 if memory else 0.0
    settings: dict[str, Any] = {"normalize_values": False, "clip": 0.1, "learning_rate": 0.02}
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
    targets = (advantages + values[:, :-1])[mask]
    explained = 1 - advantages[mask].var() / targets.var()
    assert float(first["explained_variance"]) == pytest.approx(explained, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("correction", ["gae", "vtrace"])
@with_and_without_memory
def test_gpu_learns_what_a_cpu_learns(memory: dict[str, Any], correction: Any) -> None:
    metrics = []
    for device in ("cpu", "cuda"):
        agent = agent_for(**memory, correction=correction)
        batch = batch_for(agent)
        agent = agent_for(**memory, correction=correction, device=device, target_kl=1.0)
        metrics.append({name: float(value) for name, value in agent.opt(batch).items()})
        assert agent.act(batch["obs"][:, 0]).action.shape == (3,)
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-4)


def test_gradient_steps_are_epochs_times_parts_unless_the_policy_has_gone_far() -> None:
    settings: dict[str, Any] = {"epochs": 5, "minibatches": 3, "learning_rate": 0.05}
    for target_kl, steps in [(0.0, 15), (1e9, 15), (1e-9, 3)]:
        agent = agent_for(**settings, target_kl=target_kl)
        assert float(agent.opt(batch_for(agent))["grad_steps"]) == steps


@pytest.mark.parametrize(("weight", "sign"), [(10.0, 1), (0.0, -1)])
def test_entropy_bonus_keeps_choices_open(weight: float, sign: int) -> None:
    # From a policy that has become certain, the bonus leads back; rewards alone do not.
    agent = agent_for(epochs=20, entropy_weight=weight, learning_rate=1e-2)
    with torch.no_grad():
        agent.net.policy.bias.copy_(torch.tensor([1.5, -1.5]))
    batch = batch_for(agent, n=64, length=20)
    reward = np.where(batch["action"] == 0, 1.0, -1.0) * batch["mask"]
    batch = {**batch, "reward": reward.astype(np.float32), "discount": 0 * batch["discount"]}
    first = float(agent.opt(batch)["entropy"])
    last = float(agent.opt(batch)["entropy"])
    assert (last - first) * sign > 0


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


def test_explained_variance_is_that_of_values_in_rewards() -> None:
    agent = agent_for()
    agent.value_norm.learn(torch.tensor([100.0, 300.0]))  # one unit of the network is 100
    batch = batch_for(agent, n=4, length=8)
    with torch.no_grad():
        values = agent.net(torch.from_numpy(batch["obs"][:, :-1]))[1]
    reward = (200.0 + 100.0 * values.numpy()) * batch["mask"]  # just what the network expects
    batch = {**batch, "reward": reward.astype(np.float32), "discount": 0 * batch["discount"]}
    assert float(agent.opt(batch)["explained_variance"]) == pytest.approx(1.0, abs=1e-4)


@with_and_without_memory
def test_networks_start_orthogonal_and_policies_nearly_uniform(memory: dict[str, Any]) -> None:
    agent = agent_for(hidden=(16, 8), **memory)
    for torso in agent.net.torsos:
        rows = torso.state_dict()["hidden.1.weight"]
        assert torch.allclose(rows @ rows.T, 2.0 * torch.eye(8), atol=1e-5)
    assert len(agent.net.torsos) == (1 if memory else 2)
    entropy = float(agent.opt(batch_for(agent))["entropy"])
    assert entropy == pytest.approx(math.log(2.0), abs=1e-3)


def train(
    agent: PPOConfig,
    env: str,
    n_envs: int = 8,
    n_steps: int = 128,
    **parts: Any,
) -> TrainResult:
    n = n_envs * n_steps
    return train_sync(
        agent,
        partial(EnvConfig(id=env, n_envs=n_envs).build),
        SyncConfig(
            replay=TrajectoryQueueConfig(),
            trainer=TrainerConfig(batch_size=n),
            record=RecordConfig(interval_s=0.0, interval_opt_steps=1),
            evaluate=EvaluationConfig(where="off"),
        ),
        **parts,
    )


@pytest.mark.parametrize("cut", [{"max_length": 8}, {"clip_length": 5}])
def test_memory_continues_where_trajectories_are_cut(cut: dict[str, int]) -> None:
    recorder = MemoryRecorder()
    train(
        PPOConfig(device="cpu", hidden=(16,), memory="gru", learning_rate=1e-2),
        "CartPole-v1",
        n_envs=2,
        n_steps=32,
        make_processor=lambda: trajectory_processor.Trajectories(
            trajectory_processor.TrajectoryConfig(**cut)
        ),
        stop=MaxOptSteps(3),
        recorder=recorder,
    )
    lags = [float(r["agent/lag_kl"]) for r in recorder.records if "agent/lag_kl" in r]
    assert lags == pytest.approx([0.0] * len(lags), abs=1e-9), "no step has changed the policy"
    assert len(lags) >= 3


@pytest.mark.parametrize(("memory", "correction"), [("none", "gae"), ("lstm", "vtrace")])
def test_a_run_with_everything_on(memory: Any, correction: Any) -> None:
    agent = PPOConfig(
        device="cpu",
        hidden=(16,),
        activation="relu",
        shared_torso=True,
        memory=memory,
        state_std=True,
        initial_log_std=-0.5,
        correction=correction,
        epochs=2,
        learning_rate=Schedule.linear(1e-3, 0.0, 10_000),
        clip=Schedule.linear(0.3, 0.1, 10_000),
        entropy_weight=1e-3,
        dual_clip=3.0,
        value_clip=0.2,
        target_kl=0.05,
        normalize_obs=True,
        normalize_reward=True,
        precision="bfloat16",
    )
    recorder = MemoryRecorder()
    result = train(
        agent,
        "Pendulum-v1",
        n_envs=4,
        n_steps=32,
        stop=MaxOptSteps(4),
        recorder=recorder,
    )
    assert result.opt_steps == 4
    assert {"policy_loss", "value_loss", "explained_variance"} <= set(result.agent)
    assert np.isfinite(list(result.agent.values())).all()


def test_two_actors_run_ahead_of_the_learner_and_are_corrected_for() -> None:
    recorder = MemoryRecorder()
    start = preset("appo")
    config = dataclasses.replace(
        start,
        launcher="thread",
        trainer=dataclasses.replace(start.trainer, batch_size=512),
        record=RecordConfig(interval_opt_steps=1),
        evaluate=EvaluationConfig(where="off", interval_opt_steps=0),
    )
    result = train_async(
        dataclasses.replace(PPOConfig(correction="vtrace"), device="cpu"),
        partial(EnvConfig(id="CartPole-v1", n_envs=8).build),
        config,
        stop=AnyOf(MaxOptSteps(8), MaxSeconds(60.0)),
        recorder=recorder,
    )
    assert result.opt_steps == 8
    lags = [float(r["agent/lag_kl"]) for r in recorder.records if "agent/lag_kl" in r]
    assert np.isfinite(lags).all()
    assert max(lags) > 1e-6
