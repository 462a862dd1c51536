"""What behaviour cloning adds to the contract of agents: likelihoods, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.bc import BCConfig
from asyncrl.core.agent import evaluation_mode
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.types import Array
from tests.agents.cloning import (
    CONTEXT,
    CONTINUOUS,
    LEARNING_RATE,
    LOG_STD,
    batch_of,
    check_moves,
    every_spec,
    linear_actor,
    log_prob,
    randomize,
    slope,
    weight_of,
)

CONFIG = BCConfig(
    device="cpu",
    actor_network=linear_actor,
    initial_log_std=LOG_STD,
    learning_rate=LEARNING_RATE,
)


@every_spec
def test_loss_and_step_are_those_of_naive_likelihood(spec: EnvSpec) -> None:
    agent, batch = CONFIG.build(spec, CONTEXT), batch_of(spec)
    actor = agent.actor.network
    randomize(actor, 0)
    before = weight_of(actor)

    def loss(weight: Array) -> float:
        rows = zip(batch["obs"], batch["action"], strict=True)
        return -sum(log_prob(weight @ obs, np.array(action)) for obs, action in rows) / 5

    metrics = agent.opt(batch)
    assert float(metrics["loss"]) == pytest.approx(loss(before), rel=1e-5)
    check_moves(before, weight_of(actor), slope(loss, before))


def test_quantity_with_a_single_value_has_a_finite_loss() -> None:
    low, high = np.array([-1.0, 2.0], np.float32), np.array([1.0, 2.0], np.float32)
    spec = EnvSpec(CONTINUOUS.observation, BoxSpec((2,), "float32", low, high))
    agent = CONFIG.build(spec, CONTEXT)
    batch = {**batch_of(CONTINUOUS), "action": np.tile(high, (5, 1))}
    # (1, 0) in units: the second one is its only value, where the mean is
    expected = 0.5 * math.exp(-2 * LOG_STD) + 2 * (LOG_STD + 0.5 * math.log(2 * math.pi))
    assert float(agent.opt(batch)["loss"]) == pytest.approx(expected, rel=1e-5)
    assert (agent.act(batch["obs"]).action[:, 1] == 2.0).all()


def learned(config: BCConfig, spec: EnvSpec, action_of: Any, opt_steps: int = 400) -> Any:
    agent = config.build(spec, CONTEXT)
    random = np.random.default_rng(0)
    for _ in range(opt_steps):
        obs = random.normal(size=(64, 3)).astype(np.float32)
        batch = {**batch_of(spec, 64), "obs": obs, "next_obs": obs, "action": action_of(obs)}
        agent.opt(batch)
    return agent


LEARNS = BCConfig(hidden=(32,), device="cpu", learning_rate=1e-2)


def test_learns_quantities_and_their_spread() -> None:
    random = np.random.default_rng(3)

    def noisy(obs: Array) -> Array:
        unit = np.tanh(obs[:, :2]) * 0.5 + 0.1 * random.normal(size=(len(obs), 2))
        action: Array = (unit * [1.0, 2.5] + [0.0, 2.5]).astype(np.float32)
        return action

    agent = learned(LEARNS, CONTINUOUS, noisy, 800)
    obs = random.normal(size=(500, 3)).astype(np.float32)
    with evaluation_mode(agent):
        action = agent.act(obs).action
    np.testing.assert_allclose(action[:, 0], np.tanh(obs[:, 0]) * 0.5, atol=0.25)
    np.testing.assert_allclose(agent.head.log_std.detach().exp(), [0.1, 0.1], rtol=0.4)


def test_deviations_do_not_vanish_where_data_has_none() -> None:
    agent = learned(replace(LEARNS, state_std=True), CONTINUOUS, lambda obs: 0 * obs[:, :2], 300)
    entropy_of_one = -5.0 + 0.5 * math.log(2 * math.pi * math.e)
    metrics = agent.opt({**batch_of(CONTINUOUS), "action": np.zeros((5, 2), np.float32)})
    assert float(metrics["entropy"]) >= 2 * entropy_of_one - 1e-4
