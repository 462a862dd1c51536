"""What IQL adds to the contract of agents: three losses, and that it beats who it learns from."""

from __future__ import annotations

import math

import pytest

from asyncrl.agents.iql import IQLAgent, IQLConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array, Columns
from tests.agents import cloning

CONFIG = IQLConfig(
    value_network=cloning.linear_value,
    expectile=0.8,
    temperature=0.5,
    max_weight=0.9,
    **cloning.SETTINGS,
)


class Naive(cloning.Naive):
    """The paper's equations, one row after another."""

    def __init__(self, agent: IQLAgent, batch: Columns) -> None:
        super().__init__(agent, batch)
        self.value = cloning.weight_of(agent.value)

    def u(self, row: dict[str, Array], value: Array) -> float:
        least = min(cloning.q_of(target, row["obs"], row["action"]) for target in self.targets)
        return least - float((value @ row["obs"])[0])

    def value_loss(self, value: Array) -> float:
        us = [self.u(row, value) for row in self.rows]
        return sum((0.2 if u < 0 else 0.8) * u * u for u in us) / 5

    def errors(self, critic: Array) -> list[float]:
        return [
            cloning.q_of(critic, row["obs"], row["action"])
            - float(row["reward"] + row["discount"] * (self.value @ row["next_obs"])[0])
            for row in self.rows
        ]

    def actor_loss(self, actor: Array) -> float:
        weights = [min(math.exp(self.u(row, self.value) / 0.5), 0.9) for row in self.rows]
        assert 0.9 in weights, "the limit is part of the test"
        logs = [cloning.log_prob(actor @ row["obs"], row["action"]) for row in self.rows]
        return -sum(w * log for w, log in zip(weights, logs, strict=True)) / 5


@cloning.every_spec
def test_losses_and_steps_are_those_of_naive_equations(spec: EnvSpec) -> None:
    agent = CONFIG.build(spec, cloning.CONTEXT)
    cloning.randomized(agent, agent.value)
    batch = cloning.batch_of(spec)
    naive = Naive(agent, batch)
    metrics = agent.opt(batch)
    cloning.check_losses_and_steps(naive, agent, metrics)
    assert float(metrics["value_loss"]) == pytest.approx(naive.value_loss(naive.value), rel=1e-4)
    cloning.check_moves(
        naive.value, cloning.weight_of(agent.value), cloning.slope(naive.value_loss, naive.value)
    )
