"""What AWAC adds to the contract of agents: two losses, and that it beats who it learns from."""

from __future__ import annotations

import math

import numpy as np
import torch

from asyncrl.agents.awac import AWACAgent, AWACConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array, Columns
from tests.agents import cloning

CONFIG = AWACConfig(
    temperature=2.0,
    max_weight=1.5,
    **cloning.SETTINGS,
)


class Naive(cloning.Naive):
    """The paper's equations, one row after another."""

    def __init__(self, agent: AWACAgent, batch: Columns) -> None:
        super().__init__(agent, batch)
        generator = torch.Generator().manual_seed(cloning.CONTEXT.seed)
        self.noise = torch.randn(2, len(self.rows), 2, generator=generator).numpy()

    def value(self, critics: list[Array], obs: Array, noise: Array) -> float:
        """Return what critics expect of the policy: of all choices, or of an action drawn."""
        outputs = self.actor @ obs
        if len(outputs) == 2:
            drawn = (outputs + math.exp(cloning.LOG_STD) * noise).clip(-1.0, 1.0)
            return min(float((c @ np.concatenate([obs, drawn]))[0]) for c in critics)
        odds = [math.exp(cloning.log_prob(outputs, np.array(choice))) for choice in range(4)]
        return sum(
            p * min(cloning.q_of(c, obs, np.array(choice)) for c in critics)
            for choice, p in enumerate(odds)
        )

    def errors(self, critic: Array) -> list[float]:
        return [
            cloning.q_of(critic, row["obs"], row["action"])
            - float(
                row["reward"]
                + row["discount"] * self.value(self.targets, row["next_obs"], self.noise[0, i])
            )
            for i, row in enumerate(self.rows)
        ]

    def actor_loss(self, actor: Array) -> float:
        total = 0.0
        limited = 0
        for i, row in enumerate(self.rows):
            least = min(cloning.q_of(c, row["obs"], row["action"]) for c in self.critics)
            advantage = least - self.value(self.critics, row["obs"], self.noise[1, i])
            limited += math.exp(advantage / 2.0) > 1.5
            weight = min(math.exp(advantage / 2.0), 1.5)
            total -= weight * cloning.log_prob(actor @ row["obs"], row["action"])
        assert 0 < limited < len(self.rows), "the limit is part of the test"
        return total / len(self.rows)


@cloning.every_spec
def test_losses_and_steps_are_those_of_naive_equations(spec: EnvSpec) -> None:
    agent, batch = cloning.randomized(CONFIG.build(spec, cloning.CONTEXT)), cloning.batch_of(spec)
    naive = Naive(agent, batch)
    metrics = agent.opt(batch)
    cloning.check_losses_and_steps(naive, agent, metrics)
