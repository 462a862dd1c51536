"""What behaviour cloning adds to the contract of agents: likelihoods, and what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.agents.bc import BCConfig
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
