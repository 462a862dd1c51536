"""Noisy layers: by hand and by the paper's sums, who draws which noise, and what is learned."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.networks import NoisyLinear, Perturbation
from asyncrl.core.agent import PolicyContext, evaluation_mode
from tests.agents.chain import TWO_STATES, random_batch, spec

NOISY = DQNConfig(hidden=(16,), noisy=True, exploration=None, device="cpu")


def build(config: DQNConfig = NOISY, seed: int = 0, n_envs: int = 1) -> DQNAgent:
    return config.build(TWO_STATES, PolicyContext(seed=seed, n_envs=n_envs))


def sums_of_the_paper(layer: NoisyLinear, x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return y_j = sum over i of (mu_ij + sigma_ij f_i f_j) x_i + mu_j + sigma_j f_j."""
    mu, sigma = layer.weight.detach().numpy(), layer.weight_sigma.detach().numpy()
    mu_b, sigma_b = layer.bias.detach().numpy(), layer.bias_sigma.detach().numpy()
    into, out = noise[: layer.in_features], noise[layer.in_features :]
    y = np.zeros(layer.out_features)
    for j in range(layer.out_features):
        for i in range(layer.in_features):
            y[j] += (mu[j, i] + sigma[j, i] * into[i] * out[j]) * x[i]
        y[j] += mu_b[j] + sigma_b[j] * out[j]
    return y


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 5])
def test_output_is_that_of_the_paper_for_shared_and_for_own_noise(rows: int) -> None:
    layer = NoisyLinear(3, 2)
    with torch.no_grad():
        layer.weight_sigma.copy_(drawn(2, 3, seed=1))
        layer.bias_sigma.copy_(drawn(2, seed=2))
    x, noise = drawn(5, 3, seed=3), drawn(rows, 5, seed=4)
    Perturbation(layer).set(noise)
    y = layer(x).detach().numpy()
    for row in range(5):
        own = noise[row if rows > 1 else 0]
        expected = sums_of_the_paper(layer, x[row].numpy(), own.numpy())
        assert y[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_parameters_start_as_in_the_paper() -> None:
    layer = NoisyLinear(16, 200, sigma=0.5)
    assert (layer.weight_sigma == 0.125).all()
    assert (layer.bias_sigma == 0.125).all()
    for mu in (layer.weight, layer.bias):
        assert 0.2 < float(mu.detach().abs().max()) <= 0.25
        assert float(mu.detach().std()) == pytest.approx(0.25 / math.sqrt(3), rel=0.2)


def test_environments_explore_apart_and_differently_each_time() -> None:
    policy = build(n_envs=64)
    obs = np.ones((64, 2), np.float32)
    first, second = policy.act(obs).action, policy.act(obs).action
    for action in (first, second):
        assert len(set(action.tolist())) == 2, "the same observation, but other weights"
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("learns", [False, True])
def test_evaluation_is_that_of_the_mean_weights(learns: bool) -> None:
    agent, untouched = build(n_envs=64), build(seed=1, n_envs=64)
    obs = drawn(64, 2).numpy()
    if learns:
        agent.opt(random_batch())
    perturbed = agent.act(obs).action
    untouched.sync_model(agent.model_info())
    with torch.no_grad():
        best = untouched.model(torch.from_numpy(obs)).argmax(dim=1).numpy()
    with evaluation_mode(agent):
        assert np.array_equal(agent.act(obs).action, best)
    assert not np.array_equal(perturbed, best)
    assert agent.record() == {}


def test_target_network_has_other_noise_than_the_online_network() -> None:
    one_action = spec((2,), 1)
    agent = NOISY.build(one_action, PolicyContext(seed=0))
    batch = random_batch(one_action)
    batch["next_obs"], batch["reward"] = batch["obs"], np.zeros(8, np.float32)
    batch["discount"] = np.ones(8, np.float32)
    # (Q(s, a) - Q'(s, a))^2, which is 0 where the networks and their noise are the same.
    assert float(agent.opt(batch)["loss"]) > 1e-4
