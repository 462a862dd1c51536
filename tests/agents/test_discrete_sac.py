"""What discrete SAC adds to the contract of agents: its equations, its networks, that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from asyncrl.agents.discrete_sac import DiscreteSACAgent, DiscreteSACConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import ACTION_MASK, BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.types import Array, Columns

CONTEXT = PolicyContext(seed=3)
CHOICES = 3


SPEC = EnvSpec(BoxSpec((2,), "float32", np.zeros(2), np.ones(2)), DiscreteSpec(CHOICES))


def small(**settings: Any) -> DiscreteSACConfig:
    usual = {"hidden": (16,), "device": "cpu", "random_env_steps": 0, "critic_reduction": "min"}
    return DiscreteSACConfig(**usual | settings)


def observations(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)


def batch_of(n: int = 32, **columns: Array) -> Columns:
    random = np.random.default_rng(n)
    batch = {
        "obs": observations(n, 1),
        "next_obs": observations(n, 2),
        "action": random.integers(CHOICES, size=n),
        "reward": random.normal(size=n).astype(np.float32),
        "discount": np.where(random.random(n) < 0.2, 0.0, 0.9).astype(np.float32),
    }
    return batch | columns


class Table(nn.Module):
    """The same answer to everything, which it can learn."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.zeros(CHOICES))

    def forward(self, obs: Tensor) -> Tensor:
        return self.answer.expand(len(obs), -1)


def agent_of_tables(
    logits: list[float], *values: list[float], slow: list[list[float]] | None = None, **more: Any
) -> DiscreteSACAgent:
    """Build an agent whose actor, critics and slow critics answer everything alike."""
    config = small(actor_network=Table, critic_network=Table, n_critics=len(values), **more)
    agent = config.build(SPEC, CONTEXT)
    with torch.no_grad():
        next(agent.model.parameters()).copy_(torch.tensor(logits))
        for critics, numbers in ((agent.critics, values), (agent.targets, slow or values)):
            for parameter, row in zip(critics.parameters(), numbers, strict=True):
                parameter.copy_(torch.tensor(row))
    return agent


# --- acting --------------------------------------------------------------------------------------


def test_actions_are_drawn_as_often_as_the_actor_says() -> None:
    policy = small(actor_network=Table).build_policy(SPEC, CONTEXT)
    with torch.no_grad():
        next(policy.model.parameters()).copy_(torch.log(torch.tensor([0.7, 0.1, 0.2])))
    action = policy.act(observations(20_000)).action
    np.testing.assert_allclose(np.bincount(action) / len(action), [0.7, 0.1, 0.2], atol=0.02)


# --- learning: by hand ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "expected", "moves"),
    [
        (0.3, 9.7**2, True),  # near its target network, which has 0: not clipped
        (2.0, 9.5**2, False),  # farther than 0.5 towards the target: only back
        (-2.0, 12.0**2, True),  # farther than 0.5 away from the target
    ],
)
def test_critics_stay_near_their_target_networks_if_asked_to(
    q: float, expected: float, moves: bool
) -> None:
    agent = agent_of_tables(
        [0.0] * 3, [q] * 3, slow=[[0.0] * 3], alpha=0.0, clip_change=0.5, critic_learning_rate=0.1
    )
    ones = np.ones(8, np.float32)
    action = np.arange(8) % CHOICES
    record = agent.opt(batch_of(8, action=action, reward=10 * ones, discount=0 * ones))
    assert record["critic_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert (next(agent.critics.parameters()).tolist() != pytest.approx([q] * 3)) is moves


@pytest.mark.parametrize(("share", "sign"), [(1.0, 1), (0.0, -1)])
def test_alpha_follows_the_share_of_the_largest_entropy(share: float, sign: int) -> None:
    config = small(target_entropy_share=share, initial_alpha=0.5, alpha_learning_rate=0.01)
    agent = config.build(SPEC, CONTEXT)
    alphas = [agent.opt(batch_of())["alpha"].item() for _ in range(3)]
    # Adam's first steps are as long as its learning rate.
    assert alphas == pytest.approx([0.5 * math.exp(sign * 0.01 * k) for k in range(3)], rel=1e-4)


def test_share_is_that_of_the_entropy_of_allowed_actions() -> None:
    # Alpha would rise without end: two of three actions never reach the share of all three.
    mask = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]], np.int8)
    box = BoxSpec((CHOICES,), "int8", np.zeros(CHOICES, np.int8), np.ones(CHOICES, np.int8))
    fields = PackedSpec((("observation", SPEC.observation), (ACTION_MASK, box)))
    obs = fields.pack({"observation": observations(len(mask)), ACTION_MASK: mask})
    batch = batch_of(len(mask), obs=obs, next_obs=obs, action=mask.argmax(axis=1))
    config = small(actor_network=Table, target_entropy_share=0.99, alpha_learning_rate=0.01)
    agent = config.build(replace(SPEC, observation=fields), CONTEXT)
    first, second = (agent.opt(batch) for _ in range(2))
    # all allowed actions alike; where none is, all are
    assert first["entropy"].item() == pytest.approx(np.log([2, 2, 1, 3]).mean())
    assert second["alpha"].item() == pytest.approx(math.exp(-0.01), rel=1e-4)


@pytest.mark.parametrize(("teacher", "max_grad_norm"), [("actor", 0.0), ("critic", 0.1)])
def test_layers_that_actor_and_critics_share_are_taught_by_both(
    teacher: str, max_grad_norm: float
) -> None:
    shared = nn.Linear(2, 4)
    rates = {f"{name}_learning_rate": 0.1 * (name == teacher) for name in ("actor", "critic")}
    agent = small(
        actor_network=lambda _: nn.Sequential(shared, nn.ReLU(), nn.Linear(4, CHOICES)),
        critic_network=lambda _: nn.Sequential(shared, nn.Linear(4, CHOICES)),
        max_grad_norm=max_grad_norm,
        **rates,
    ).build(SPEC, CONTEXT)
    modules = {"actor": agent.model[2], "critic": agent.critics.networks[0][1], "shared": shared}
    before = {name: module.weight.clone() for name, module in modules.items()}
    agent.opt(batch_of())
    moved = {name for name, old in before.items() if not torch.equal(old, modules[name].weight)}
    assert moved == {teacher, "shared"}


# --- learning: against the equations, written down once more -------------------------------------


@given(
    seed=st.integers(0, 2**16),
    weighted=st.booleans(),
    alpha=st.floats(0.01, 2.0),
    reduction=st.sampled_from(["min", "mean"]),
)
def test_losses_are_those_of_the_paper(
    seed: int, weighted: bool, alpha: float, reduction: str
) -> None:
    random = np.random.default_rng(seed)
    config = small(alpha=alpha, critic_reduction=reduction)
    agent = config.build(SPEC, PolicyContext(seed=seed))
    with torch.no_grad():
        for slow in agent.targets.parameters():
            slow.add_(0.1)
    batch = batch_of(12, obs=observations(12, seed), next_obs=observations(12, seed + 1))
    weight = random.random(12).astype(np.float32)
    answers = Answers(agent)
    expected = answers.losses(batch, alpha, weight if weighted else np.ones(12))
    record = agent.opt({**batch, "weight": weight} if weighted else batch)
    metrics = [record[name].item() for name in ("critic_loss", "actor_loss", "entropy")]
    np.testing.assert_allclose(metrics, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(agent.priorities(), answers.priorities, rtol=1e-4, atol=1e-6)


class Answers:
    """Losses in plain loops, of what an agent's networks answer now."""

    def __init__(self, agent: DiscreteSACAgent) -> None:
        self._actor = agent.model
        self._critics, self._targets = agent.critics, agent.targets
        self._reduce = {"min": min, "mean": np.mean}[agent.config.critic_reduction]

    def losses(self, batch: Columns, alpha: float, weight: Array) -> list[float]:
        with torch.no_grad():
            obs, next_obs = (torch.from_numpy(batch[name]) for name in ("obs", "next_obs"))
            q = self._critics.of_all(obs).double().numpy()
            next_q = self._targets.of_all(next_obs).double().numpy()
            logits, next_logits = (self._actor(o).double().numpy() for o in (obs, next_obs))
        critic = actor = entropy = 0.0
        self.priorities = np.zeros(len(batch["obs"]))
        n_critics, n, n_actions = q.shape
        for row in range(n):
            pi, next_pi = softmax(logits[row]), softmax(next_logits[row])
            value = 0.0
            for a in range(n_actions):
                q_of_all = self._reduce(next_q[:, row, a])
                value += next_pi[a] * (q_of_all - alpha * math.log(next_pi[a]))
                q_of_all = self._reduce(q[:, row, a])
                actor += pi[a] * (alpha * math.log(pi[a]) - q_of_all) / n
                entropy -= pi[a] * math.log(pi[a]) / n
            y = batch["reward"][row] + batch["discount"][row] * value
            for i in range(n_critics):
                error = q[i, row, batch["action"][row]] - y
                critic += weight[row] * error**2 / (n * n_critics)
                self.priorities[row] += abs(error) / n_critics
        return [critic, actor, entropy]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    probabilities: Array = powers / powers.sum()
    return probabilities


def test_actor_steps_down_its_own_slope() -> None:
    # d/dlogit_k of sum_a pi_a (alpha log pi_a - q_a) = pi_k (alpha log pi_k - q_k - J)
    q, alpha, logits = np.array([0.3, -0.2, 0.5]), 0.1, [0.2, -0.4, 0.1]
    agent = agent_of_tables(logits, q.tolist(), alpha=alpha)
    agent.opt(batch_of())
    pi = softmax(np.array(logits))
    inner = alpha * np.log(pi) - q
    slope = pi * (inner - (pi * inner).sum())
    gradient = next(agent.model.parameters()).grad
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-4, atol=1e-7)
