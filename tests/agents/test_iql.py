"""What IQL adds to the contract of agents: three losses, and that it beats who it learns from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.iql import IQLAgent, IQLConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array, Columns
from tests.agents.cloning import (
    CHOICES,
    CONTEXT,
    LEARNING_RATE,
    LOG_STD,
    batch_of,
    check_losses_and_steps,
    check_moves,
    critics_of,
    every_spec,
    linear_actor,
    linear_critic,
    linear_value,
    log_prob,
    q_of,
    randomize,
    rows_of,
    slope,
    weight_of,
)

CONFIG = IQLConfig(
    device="cpu",
    actor_network=linear_actor,
    critic_network=linear_critic,
    value_network=linear_value,
    initial_log_std=LOG_STD,
    learning_rate=LEARNING_RATE,
    expectile=0.8,
    temperature=0.5,
    max_weight=0.9,
    tau=0.1,
)


def random_agent(spec: EnvSpec, **settings: Any) -> IQLAgent:
    agent = replace(CONFIG, **settings).build(spec, CONTEXT)
    parts = agent.actor.network, agent.critics, agent.parts["targets"], agent.value
    for seed, part in enumerate(parts):
        randomize(part, seed)  # type: ignore[arg-type]
    return agent


class Naive:
    """The paper's equations, one row after another."""

    def __init__(self, agent: IQLAgent, batch: Columns) -> None:
        self.rows = rows_of(batch)
        self.actor = weight_of(agent.actor.network)
        self.critics = critics_of(agent.critics)
        self.targets = critics_of(agent.parts["targets"])
        self.value = weight_of(agent.value)

    def u(self, row: dict[str, Array], value: Array) -> float:
        least = min(q_of(target, row["obs"], row["action"]) for target in self.targets)
        return least - float((value @ row["obs"])[0])

    def value_loss(self, value: Array) -> float:
        us = [self.u(row, value) for row in self.rows]
        return sum((0.2 if u < 0 else 0.8) * u * u for u in us) / 5

    def errors(self, critic: Array) -> list[float]:
        return [
            q_of(critic, row["obs"], row["action"])
            - float(row["reward"] + row["discount"] * (self.value @ row["next_obs"])[0])
            for row in self.rows
        ]

    def actor_loss(self, actor: Array) -> float:
        weights = [min(math.exp(self.u(row, self.value) / 0.5), 0.9) for row in self.rows]
        assert 0.9 in weights, "the limit is part of the test"
        logs = [log_prob(actor @ row["obs"], row["action"]) for row in self.rows]
        return -sum(w * log for w, log in zip(weights, logs, strict=True)) / 5


@every_spec
def test_losses_and_steps_are_those_of_naive_equations(spec: EnvSpec) -> None:
    agent, batch = random_agent(spec), batch_of(spec)
    naive = Naive(agent, batch)
    metrics = agent.opt(batch)
    check_losses_and_steps(naive, agent, metrics)
    assert float(metrics["value_loss"]) == pytest.approx(naive.value_loss(naive.value), rel=1e-4)
    check_moves(naive.value, weight_of(agent.value), slope(naive.value_loss, naive.value))


def test_value_of_a_state_is_the_expectile_of_its_actions() -> None:
    """By hand: of two actions worth 0 and 1, equally frequent, V is the expectile itself."""
    config = replace(CONFIG, expectile=0.9, learning_rate=3e-2, tau=1.0)
    agent = config.build(CHOICES, CONTEXT)
    obs = np.tile(np.array([1.0, 0.0, 0.0], np.float32), (4, 1))
    batch = {
        "obs": obs,
        "next_obs": obs,
        "action": np.array([0, 1, 0, 1]),
        "reward": np.array([0.0, 1.0, 0.0, 1.0], np.float32),
        "discount": np.zeros(4, np.float32),
    }
    for _ in range(500):
        agent.opt(batch)
    # 0.9 * (1 - V) = 0.1 * V
    assert weight_of(agent.value)[0, 0] == pytest.approx(0.9, abs=0.01)
