"""What SAC adds to the contract of agents: its equations, its bounds, its networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.agents.sac import SACAgent, SACConfig, sample_action
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, Columns, ModelVersion
from tests.agents import squashed

CONTEXT = PolicyContext(seed=3)
CPU = torch.device("cpu")
LOW, HIGH = [-1.0, 2.0], [5.0, 2.5]


def box(low: list[float], high: list[float], dtype: str = "float32") -> BoxSpec:
    return BoxSpec((len(low),), dtype, np.array(low, dtype), np.array(high, dtype))


def spec_with(action: BoxSpec) -> EnvSpec:
    return EnvSpec(BoxSpec((3,), "float32", np.zeros(3), np.ones(3)), action)


SPEC = spec_with(box(LOW, HIGH))


def small(**settings: Any) -> SACConfig:
    return SACConfig(**{"hidden": (16, 16), "device": "cpu", "random_env_steps": 0} | settings)


def observations(n: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)


def batch_of(n: int = 32, **columns: Array) -> Columns:
    random = np.random.default_rng(n)
    batch = {
        "obs": observations(n, 1),
        "next_obs": observations(n, 2),
        "action": random.uniform(LOW, HIGH, (n, 2)).astype(np.float32),
        "reward": random.normal(size=n).astype(np.float32),
        "discount": np.full(n, 0.9, np.float32),
    }
    return batch | columns


class ConstantActor(nn.Module):
    """Standard normal before squashing, whatever it sees."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.zeros(2 * math.prod(spec.action.shape)))

    def forward(self, obs: Tensor) -> Tensor:
        return self.output.expand(len(obs), -1)


# --- the policy's density ------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [-40.0, 12.0])
def test_log_prob_and_its_gradient_are_exact_where_tanh_is_flat(mean: float) -> None:
    output = torch.tensor([[mean, 0.0]], requires_grad=True)
    _, log_prob = sample_action(output, torch.zeros(1, 1))
    # log(1 - tanh^2 u) = log 4 - 2 |u| for large |u|
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4.0) - 2.0 * abs(mean))
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    log_prob.backward()
    assert output.grad is not None
    assert output.grad[0, 0].item() == pytest.approx(math.copysign(2.0, mean), rel=1e-5)


@pytest.mark.parametrize(("log_std", "clamped"), [(-100.0, -5.0), (100.0, 2.0)])
def test_standard_deviation_is_clamped(log_std: float, clamped: float) -> None:
    noise = torch.tensor([[0.1]])
    wild = sample_action(torch.tensor([[0.0, log_std]]), noise)
    tame = sample_action(torch.tensor([[0.0, clamped]]), noise)
    torch.testing.assert_close(wild, tame)


# --- acting --------------------------------------------------------------------------------------


def policy_that_outputs(*numbers: float, spec: EnvSpec = SPEC) -> TorchPolicy:
    policy = small(actor_network=ConstantActor).build_policy(spec, CONTEXT)
    with torch.no_grad():
        next(policy.model.parameters()).copy_(torch.tensor(numbers))
    return policy


# atanh(0.5) = 0.5493: three quarters of the way from low to high
@pytest.mark.parametrize(
    ("mean", "low", "high", "expected"),
    [
        ([0.5493061, -0.5493061], LOW, HIGH, [3.5, 2.125]),
        ([-50.0, 50.0], [-0.1, 1e-3], [0.7, 1e3], [-0.1, 1e3]),
        ([50.0, -50.0], [-0.1, 1e-3], [0.7, 1e3], [0.7, 1e-3]),
    ],
)
def test_mean_action_lies_where_the_bounds_put_it_and_never_beyond(
    mean: list[float], low: list[float], high: list[float], expected: list[float]
) -> None:
    bounds = box(low, high)
    policy = policy_that_outputs(*mean, 0.0, 0.0, spec=spec_with(bounds)).train(False)
    action = policy.act(observations(4)).action
    np.testing.assert_allclose(action, [expected] * 4, rtol=1e-6)
    assert ((action >= bounds.low) & (action <= bounds.high)).all()


def test_sampled_actions_spread_as_the_actor_says() -> None:
    policy = policy_that_outputs(0.3, 0.0, math.log(0.5), -5.0)
    action = policy.act(observations(20_000)).action
    u = np.arctanh((action.astype(np.float64) - [2.0, 2.25]) / [3.0, 0.25])
    np.testing.assert_allclose(u.mean(axis=0), [0.3, 0.0], atol=0.02)
    np.testing.assert_allclose(u.std(axis=0), [0.5, math.exp(-5.0)], rtol=0.03)


def test_steps_of_the_whole_run_count_and_evaluation_does_not() -> None:
    policy = small(random_env_steps=10, actor_network=ConstantActor).build_policy(SPEC, CONTEXT)
    nn.init.constant_(next(policy.model.parameters()), -50.0)
    with evaluation_mode(policy):
        for _ in range(20):
            assert (policy.act(observations(4)).action == LOW).all()
    assert not (policy.act(observations(4)).action == LOW).all()
    params = policy.model_info().params
    policy.sync_model(ModelInfo(version=ModelVersion(1), params=params, env_steps=10))
    assert (policy.act(observations(4)).action == LOW).all()


# --- against the paper's equations, one row after another ----------------------------------------


class NaiveSAC:
    """The equations, of parameters that are given: MLPs of one hidden layer."""

    def __init__(self, agent: SACAgent, batch: Columns, alpha: float) -> None:
        self.batch = {name: column.astype(np.float64) for name, column in batch.items()}
        self.rows, self.alpha = len(batch["obs"]), alpha
        self.noise = squashed.drawn_noise(CONTEXT.seed, self.rows, 2)
        self.actor = squashed.arrays_of(agent.model)
        self.critics = squashed.arrays_of(agent.critics)
        self.targets = squashed.arrays_of(agent.targets)

    def drawn(self, actor: list[Array], obs: Array, noise: Array) -> tuple[Array, float]:
        weight, bias, out_weight, out_bias = actor
        return squashed.sampled(out_weight @ np.maximum(weight @ obs + bias, 0.0) + out_bias, noise)

    def values(self, critics: list[Array], obs: Array, unit: Array) -> list[float]:
        x = np.concatenate([obs, unit])
        weights, out_weights, biases, out_biases = critics
        hidden = [np.maximum(x @ w + b[0], 0.0) for w, b in zip(weights, biases, strict=True)]
        outs = zip(hidden, out_weights, out_biases, strict=True)
        return [float((h @ w + b[0])[0]) for h, w, b in outs]

    def targets_of_rows(self) -> list[float]:
        targets = []
        for i in range(self.rows):
            obs = self.batch["next_obs"][i]
            action, log_prob = self.drawn(self.actor, obs, self.noise[0, i])
            value = min(self.values(self.targets, obs, action)) - self.alpha * log_prob
            targets.append(self.batch["reward"][i] + self.batch["discount"][i] * value)
        return targets

    def critic_loss(self, critics: list[Array]) -> float:
        total, count = 0.0, 0
        for i, y in enumerate(self.targets_of_rows()):
            unit = squashed.scaled(self.batch["action"][i], LOW, HIGH)
            for q in self.values(critics, self.batch["obs"][i], unit):
                total += self.batch["weight"][i] * (q - y) ** 2
                count += 1
        return total / count

    def log_probs(self, actor: list[Array]) -> list[float]:
        obs = self.batch["obs"]
        return [self.drawn(actor, obs[i], self.noise[1, i])[1] for i in range(self.rows)]

    def actor_loss(self, actor: list[Array], critics: list[Array]) -> float:
        total = 0.0
        for i in range(self.rows):
            obs = self.batch["obs"][i]
            action, log_prob = self.drawn(actor, obs, self.noise[1, i])
            total += self.alpha * log_prob - min(self.values(critics, obs, action))
        return total / self.rows


@pytest.mark.parametrize(("target_entropy", "n_critics"), [(-2.0, 2), (5.0, 3)])
def test_step_is_that_of_the_papers_equations(target_entropy: float, n_critics: int) -> None:
    settings = {"target_entropy": target_entropy, "n_critics": n_critics} | squashed.RATES
    agent = small(hidden=(5,), initial_alpha=0.3, **settings).build(SPEC, CONTEXT)
    for seed, network in enumerate((agent.model, agent.critics, agent.targets)):
        squashed.randomize(network, seed)
    batch = squashed.weighted(batch_of(6))
    naive = NaiveSAC(agent, batch, alpha=0.3)
    squashed.check_losses_and_steps(naive, agent, batch, target_entropy)
    pairs = zip(naive.targets, squashed.arrays_of(agent.critics), strict=True)
    for slow, (old, new) in zip(squashed.arrays_of(agent.targets), pairs, strict=True):
        np.testing.assert_allclose(slow, 0.995 * old + 0.005 * new, rtol=1e-4, atol=1e-6)


def test_target_entropy_is_minus_the_action_dimensions() -> None:
    # Uniform on [-1, 1]: log 2 for each dimension. Narrow: far below -1 for each.
    for log_std, sign in ((0.0, -1), (-5.0, 1)):
        agent = small(actor_network=ConstantActor).build(SPEC, CONTEXT)
        with torch.no_grad():
            next(agent.model.parameters()).copy_(torch.tensor([0.0, 0.0, log_std, log_std]))
        entropy = agent.opt(batch_of())["entropy"].item()
        assert (entropy > -2.0) is (sign < 0)
        alpha = agent.opt(batch_of())["alpha"].item()
        assert (alpha - 1.0) * sign > 0


@pytest.mark.behaviour(number=8)
def test_fixed_alpha_stays() -> None:
    agent = small(alpha=0.2, target_entropy=50.0).build(SPEC, CONTEXT)
    assert [agent.opt(batch_of())["alpha"].item() for _ in range(3)] == pytest.approx([0.2] * 3)


# --- networks ------------------------------------------------------------------------------------
