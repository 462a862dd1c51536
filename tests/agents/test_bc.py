"""What behaviour cloning adds to the contract of agents: likelihoods, and what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.agents.bc import BCConfig
from asyncrl.core.agent import evaluation_mode
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.types import Array
from tests.agents import cloning

CONFIG = BCConfig(
    device="cpu",
    actor_network=cloning.linear_actor,
    initial_log_std=cloning.LOG_STD,
    learning_rate=cloning.LEARNING_RATE,
)


@cloning.every_spec
def test_loss_and_step_are_those_of_naive_likelihood(spec: EnvSpec) -> None:
    agent, batch = CONFIG.build(spec, cloning.CONTEXT), cloning.batch_of(spec)
    actor = agent.actor.network
    cloning.randomize(actor, 0)
    before = cloning.weight_of(actor)

    def loss(weight: Array) -> float:
        rows = zip(batch["obs"], batch["action"], strict=True)
        return -sum(cloning.log_prob(weight @ obs, np.array(action)) for obs, action in rows) / 5

    metrics = agent.opt(batch)
    assert float(metrics["loss"]) == pytest.approx(loss(before), rel=1e-5)
    cloning.check_moves(before, cloning.weight_of(actor), cloning.slope(loss, before))


def test_quantity_with_a_single_value_has_a_finite_loss() -> None:
    low, high = np.array([-1.0, 2.0], np.float32), np.array([1.0, 2.0], np.float32)
    spec = EnvSpec(cloning.CONTINUOUS.observation, BoxSpec((2,), "float32", low, high))
    agent = CONFIG.build(spec, cloning.CONTEXT)
    batch = {**cloning.batch_of(cloning.CONTINUOUS), "action": np.tile(high, (5, 1))}
    # (1, 0) in units: the second one is its only value, where the mean is
    expected = 0.5 * math.exp(-2 * cloning.LOG_STD) + 2 * (
        cloning.LOG_STD + 0.5 * math.log(2 * math.pi)
    )
    assert float(agent.opt(batch)["loss"]) == pytest.approx(expected, rel=1e-5)
    assert (agent.act(batch["obs"]).action[:, 1] == 2.0).all()


def test_learns_quantities_and_their_spread() -> None:
    random = np.random.default_rng(3)
    config = BCConfig(hidden=(32,), device="cpu", learning_rate=1e-2)
    agent = config.build(cloning.CONTINUOUS, cloning.CONTEXT)
    for _ in range(800):
        obs = random.normal(size=(64, 3)).astype(np.float32)
        unit = np.tanh(obs[:, :2]) * 0.5 + 0.1 * random.normal(size=(64, 2))
        action = (unit * [1.0, 2.5] + [0.0, 2.5]).astype(np.float32)
        agent.opt({**cloning.batch_of(cloning.CONTINUOUS, 64), "obs": obs, "action": action})
    with evaluation_mode(agent):
        action = agent.act(obs).action
    np.testing.assert_allclose(action[:, 0], np.tanh(obs[:, 0]) * 0.5, atol=0.25)
    np.testing.assert_allclose(agent.head.log_std.detach().exp(), [0.1, 0.1], rtol=0.4)
