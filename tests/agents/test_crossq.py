"""What CrossQ adds to the contract of agents: batch renormalisation, and no target networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.agents.crossq import CrossQAgent, CrossQConfig
from asyncrl.core.types import Array, Columns
from tests.agents import squashed
from tests.agents.test_sac import CONTEXT, HIGH, LOW, SPEC, batch_of

EPSILON = 1e-3


def small(**settings: Any) -> CrossQConfig:
    sizes = {"hidden": (16,), "critic_hidden": (16, 16), "device": "cpu", "random_env_steps": 0}
    return CrossQConfig(**sizes | settings)


def each_critic(params: list[Array], n_critics: int) -> list[list[Array]]:
    """Return each critic's parameters, layer by layer, of those of all critics together."""
    n_layers = len(params) // 4
    norms, weights, biases = np.split(np.array(params, object), [2 * n_layers, 3 * n_layers])
    return [
        [
            array
            for k in range(n_layers)
            for array in (
                *(norm.reshape(n_critics, -1)[critic] for norm in norms[2 * k : 2 * k + 2]),
                weights[k][critic],
                biases[k][critic, 0],
            )
        ]
        for critic in range(n_critics)
    ]


# --- against the paper's equations ---------------------------------------------------------------


def normalised(x: Array, mean: Array, var: Array, weight: Array, bias: Array) -> Array:
    return weight * (x - mean) / np.sqrt(var + EPSILON) + bias


def renormalised(x: Array, running: list[Array], weight: Array, bias: Array) -> Array:
    """Normalise by the batch, then correct towards the running numbers, within limits."""
    mean, spread = running[0], np.sqrt(running[1] + EPSILON)
    r = np.clip(np.sqrt(x.var(axis=0) + EPSILON) / spread, 1 / 3, 3.0)
    d = np.clip((x.mean(axis=0) - mean) / spread, -5.0, 5.0)
    by_batch = normalised(x, x.mean(axis=0), x.var(axis=0), np.ones(1), np.zeros(1))
    return weight * (by_batch * r + d) + bias


def naive_pass(
    params: list[Array], running: list[Array], x: Array, *, learning: bool, warm: bool = False
) -> tuple[Array, list[Array]]:
    """Return what batch normalisation, a layer, a cut, ... answer, and the running numbers then.

    Running numbers are a mean and a variance for each normalisation. They are what normalises,
    unless the network is learning: then that is the batch, corrected once the network is warm.
    """
    params, after = list(params), []
    for k in range(0, len(running), 2):
        mean, var = (x.mean(axis=0), x.var(axis=0)) if learning else running[k : k + 2]
        after += [
            0.99 * old + 0.01 * new for old, new in zip(running[k:], (mean, var), strict=False)
        ]
        scale, shift, weight, bias = params[:4]
        if learning and warm:
            x = renormalised(x, running[k : k + 2], scale, shift)
        else:
            x = normalised(x, mean, var, scale, shift)
        x = x @ weight.T + bias
        del params[:4]
        if params:
            x = np.maximum(x, 0.0)
    return x, after


def running_of(module: Any) -> list[Array]:
    """Return mean and variance of each normalisation."""
    buffers = module.named_buffers()
    return [b.numpy().astype(np.float64) for name, b in buffers if name.endswith(("mean", "var"))]


def runs_of_critics(agent: CrossQAgent) -> list[list[Array]]:
    """Return mean and variance of each normalisation, critic by critic."""
    cut = [np.split(array, agent.config.n_critics) for array in running_of(agent.critics)]
    return [list(arrays) for arrays in zip(*cut, strict=True)]


class NaiveCrossQ:
    """The equations, of parameters that are given."""

    def __init__(self, agent: CrossQAgent, batch: Columns, alpha: float, *, warm: bool) -> None:
        self.batch = {name: column.astype(np.float64) for name, column in batch.items()}
        self.rows, self.alpha = len(batch["obs"]), alpha
        self.noise, self.warm = squashed.drawn_noise(CONTEXT.seed, self.rows, 2), warm
        self.actor, self.actor_runs = squashed.arrays_of(agent.model), running_of(agent.model)
        self.n_critics = agent.config.n_critics
        self.critics, self.critic_runs = squashed.arrays_of(agent.critics), runs_of_critics(agent)

    def each(self, critics: list[Array]) -> list[list[Array]]:
        return each_critic(critics, self.n_critics)

    def drawn(self, actor: list[Array], name: str, *, learning: bool) -> tuple[Array, Array]:
        obs = self.batch[name]
        answers, _ = naive_pass(actor, self.actor_runs, obs, learning=learning, warm=self.warm)
        noise = self.noise[1 if learning else 0]
        pairs = [squashed.sampled(*row) for row in zip(answers, noise, strict=True)]
        return np.array([a for a, _ in pairs]), np.array([log_prob for _, log_prob in pairs])

    def in_one_pass(self, critics: list[Array]) -> tuple[Array, Array, list[list[Array]]]:
        """Return Q(s, a), Q(s', a'), each (critics, rows), and the running numbers then."""
        action = np.array([squashed.scaled(one, LOW, HIGH) for one in self.batch["action"]])
        next_action, _ = self.drawn(self.actor, "next_obs", learning=False)
        obs = np.concatenate([self.batch["obs"], self.batch["next_obs"]])
        x = np.concatenate([obs, np.concatenate([action, next_action])], axis=1)
        passes = [
            naive_pass(params, runs, x, learning=True, warm=self.warm)
            for params, runs in zip(self.each(critics), self.critic_runs, strict=True)
        ]
        values = np.array([answer[:, 0] for answer, _ in passes])
        return values[:, : self.rows], values[:, self.rows :], [runs for _, runs in passes]

    def targets(self) -> Array:
        _, next_q, _ = self.in_one_pass(self.critics)
        _, log_prob = self.drawn(self.actor, "next_obs", learning=False)
        value = next_q.min(axis=0) - self.alpha * log_prob
        return self.batch["reward"] + self.batch["discount"] * value

    def critic_loss(self, critics: list[Array]) -> float:
        """Square the errors; the targets are not learnt through."""
        q, _, _ = self.in_one_pass(critics)
        return float((self.batch["weight"] * (q - self.targets()) ** 2).mean())

    def actor_loss(self, actor: list[Array], critics: list[Array]) -> float:
        """Climb critics that have been improved, with the resulting running statistics."""
        action, log_prob = self.drawn(actor, "obs", learning=True)
        x = np.concatenate([self.batch["obs"], action], axis=1)
        _, _, runs = self.in_one_pass(self.critics)
        pairs = zip(self.each(critics), runs, strict=True)
        q = [naive_pass(params, run, x, learning=False)[0][:, 0] for params, run in pairs]
        return float((self.alpha * log_prob - np.min(q, axis=0)).mean())

    def log_probs(self, actor: list[Array]) -> Array:
        return self.drawn(actor, "obs", learning=True)[1]


@pytest.mark.parametrize("warm", [False, True])
def test_step_is_that_of_the_papers_equations(warm: bool) -> None:
    agent = small(
        hidden=(5,),
        critic_hidden=(5,),
        initial_alpha=0.3,
        n_critics=3,
        target_entropy=5.0,
        renorm_warmup_opt_steps=0 if warm else 1000,
        **squashed.RATES,
    ).build(SPEC, CONTEXT)
    for seed, network in enumerate((agent.model, agent.critics)):
        squashed.randomize(network, seed)
    batch = squashed.weighted(batch_of(6))
    naive = NaiveCrossQ(agent, batch, alpha=0.3, warm=warm)
    if warm:  # corrections towards the running numbers are not learned through
        reported = agent.opt(batch)
        actor_loss = naive.actor_loss(naive.actor, squashed.arrays_of(agent.critics))
        assert float(reported["critic_loss"]) == pytest.approx(naive.critic_loss(naive.critics))
        assert float(reported["actor_loss"]) == pytest.approx(actor_loss, rel=1e-3)
    else:
        squashed.check_losses_and_steps(naive, agent, batch, 5.0)
    _, _, runs = naive.in_one_pass(naive.critics)
    for critic, expected in zip(runs_of_critics(agent), runs, strict=True):
        for found, wanted in zip(critic, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_policy_and_temperature_wait_for_their_turn() -> None:
    agent = small(policy_interval_opt_steps=3, alpha_learning_rate=0.1).build(SPEC, CONTEXT)
    moved = []
    for _ in range(6):
        before = [*squashed.arrays_of(agent.model), agent.state()["log_alpha/value"]]
        agent.opt(batch_of())
        after = [*squashed.arrays_of(agent.model), agent.state()["log_alpha/value"]]
        changed = {not np.array_equal(p, q) for p, q in zip(before, after, strict=True)}
        assert len(changed) == 1, "both or none"
        moved += changed
    assert moved == [True, False, False, True, False, False]
