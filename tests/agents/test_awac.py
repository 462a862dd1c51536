"""What AWAC adds to the contract of agents: two losses, and that it beats who it learns from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from asyncrl.agents.awac import AWACAgent, AWACConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array, Columns
from tests.agents.cloning import (
    CONTEXT,
    CONTINUOUS,
    LEARNING_RATE,
    LOG_STD,
    batch_of,
    check_losses_and_steps,
    critics_of,
    every_spec,
    linear_actor,
    linear_critic,
    log_prob,
    q_of,
    randomize,
    rows_of,
    weight_of,
)

CONFIG = AWACConfig(
    device="cpu",
    actor_network=linear_actor,
    critic_network=linear_critic,
    initial_log_std=LOG_STD,
    learning_rate=LEARNING_RATE,
    temperature=2.0,
    max_weight=1.5,
    tau=0.1,
)


def random_agent(spec: EnvSpec, **settings: Any) -> AWACAgent:
    agent = replace(CONFIG, **settings).build(spec, CONTEXT)
    parts = agent.actor.network, agent.critics, agent.parts["targets"]
    for seed, part in enumerate(parts):
        randomize(part, seed)  # type: ignore[arg-type]
    return agent


class Naive:
    """The paper's equations, one row after another."""

    def __init__(self, agent: AWACAgent, batch: Columns) -> None:
        self.rows = rows_of(batch)
        self.actor = weight_of(agent.actor.network)
        self.critics = critics_of(agent.critics)
        self.targets = critics_of(agent.parts["targets"])
        generator = torch.Generator().manual_seed(CONTEXT.seed)
        self.noise = torch.randn(2, len(self.rows), 2, generator=generator).numpy()

    def value(self, critics: list[Array], obs: Array, noise: Array) -> float:
        """Return what critics expect of the policy: of all choices, or of an action drawn."""
        outputs = self.actor @ obs
        if len(outputs) == 2:
            drawn = (outputs + math.exp(LOG_STD) * noise).clip(-1.0, 1.0)
            return min(float((c @ np.concatenate([obs, drawn]))[0]) for c in critics)
        odds = [math.exp(log_prob(outputs, np.array(choice))) for choice in range(4)]
        return sum(
            p * min(q_of(c, obs, np.array(choice)) for c in critics)
            for choice, p in enumerate(odds)
        )

    def errors(self, critic: Array) -> list[float]:
        return [
            q_of(critic, row["obs"], row["action"])
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
            least = min(q_of(c, row["obs"], row["action"]) for c in self.critics)
            advantage = least - self.value(self.critics, row["obs"], self.noise[1, i])
            limited += math.exp(advantage / 2.0) > 1.5
            weight = min(math.exp(advantage / 2.0), 1.5)
            total -= weight * log_prob(actor @ row["obs"], row["action"])
        assert 0 < limited < len(self.rows), "the limit is part of the test"
        return total / len(self.rows)


@every_spec
def test_losses_and_steps_are_those_of_naive_equations(spec: EnvSpec) -> None:
    agent, batch = random_agent(spec), batch_of(spec)
    naive = Naive(agent, batch)
    metrics = agent.opt(batch)
    check_losses_and_steps(naive, agent, metrics)


def test_actions_drawn_differ_from_step_to_step() -> None:
    agent, batch = random_agent(CONTINUOUS, learning_rate=0.0, tau=1e-9), batch_of(CONTINUOUS)
    assert float(agent.opt(batch)["critic_loss"]) != float(agent.opt(batch)["critic_loss"])
