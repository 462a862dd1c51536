"""IMPALA: losses and gradients against the paper's sums, memory, settings, and a cue recalled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.impala import IMPALAAgent, IMPALAConfig
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns
from tests.agents.parts.test_returns import (
    GAMMA,
    NOTHING,
    STEP,
    TERMINATES,
    Clips,
    Rows,
    naive_vtrace,
)

CONTEXT = PolicyContext(seed=0, n_envs=4)
OBSERVATION = BoxSpec((2,), "float32", np.full(2, -1.0), np.ones(2))
CHOICES = EnvSpec(OBSERVATION, DiscreteSpec(3))


def itself(of: EnvSpec) -> nn.Module:
    """Show policy and values the observation as it is, of one number after the other."""
    return nn.Flatten() if len(of.observation.shape) > 1 else nn.Identity()


def linear_agent(**settings: Any) -> IMPALAAgent:
    """Return an agent whose policy and values are linear, with parameters that are not 0."""
    config = IMPALAConfig(**{"network": itself, "device": "cpu", **settings})
    agent = config.build(CHOICES, CONTEXT)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in agent.model.parameters():
            param.copy_(torch.randn(param.shape, generator=random))
    return agent


def batch_of(n: int = 3, length: int = 6, seed: int = 0) -> Columns:
    """Make trajectories with ends of both kinds, and one that is shorter."""
    random = np.random.default_rng(seed)
    mask = np.ones((n, length), np.bool_)
    goes_on = mask.copy()
    goes_on[0, 1] = False  # terminated; the row behind it is the last observation
    mask[0, 2] = mask[1, 4] = mask[2, 3:] = False
    obs = random.normal(size=(n, length + 1, 2))
    return {
        "obs": obs.astype(np.float32),
        "action": random.integers(3, size=mask.shape),
        "log_prob": np.log(random.uniform(0.1, 0.9, mask.shape)).astype(np.float32),
        "reward": (mask * random.normal(size=mask.shape)).astype(np.float32),
        "discount": (mask & goes_on).astype(np.float32) * np.float32(GAMMA),
        "mask": mask,
    }


def naive_losses(agent: IMPALAAgent, batch: Columns, entropy_weight: float) -> dict[str, Tensor]:
    """Return the losses of Espeholt et al. (2018), section 4.2, of the network as it is."""
    config, net = agent.config, agent.net
    obs, action, mask = (torch.from_numpy(batch[name]) for name in ("obs", "action", "mask"))
    log_pi = (obs[:, :-1] @ net.policy.weight.T + net.policy.bias).log_softmax(dim=2)
    values = (obs @ net.value.weight.T + net.value.bias)[..., 0]
    log_prob = log_pi.gather(2, action[..., None])[..., 0]
    ends = (batch["discount"] == 0) & batch["mask"]
    clip = config.reward_clip or np.inf
    rows = Rows(
        np.select([ends, batch["mask"]], [TERMINATES, STEP], NOTHING).tolist(),
        reward=batch["reward"].clip(-clip, clip),
        discount=batch["discount"],
        mask=batch["mask"],
        values=values.detach().numpy(),
        log_rhos=log_prob.detach().numpy() - batch["log_prob"],
    )
    clips = Clips(clip_rho=config.clip_rho, clip_c=config.clip_c, clip_pg_rho=config.clip_pg_rho)
    targets, advantages = map(torch.from_numpy, naive_vtrace(rows, config.lambda_, clips))
    if config.normalize_advantages:
        advantages = (advantages - advantages[mask].mean()) / advantages[mask].std(correction=0)
    policy = -(advantages * log_prob)[mask].mean()
    value = (targets - values[:, :-1])[mask].square().mean()
    entropy = -(log_pi.exp() * log_pi).sum(dim=2)[mask].mean()
    loss = policy + config.value_weight * value - entropy_weight * entropy
    return {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy}


@pytest.mark.behaviour(number=64)
@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_weight": 0.3},
        {"entropy_weight": 0.0, "clip_rho": 2.0, "clip_c": 0.5, "clip_pg_rho": 0.7, "lambda_": 0.9},
        {
            "reward_clip": 0.5,
            "entropy_weight": Schedule.linear(0.6, 0.0, 100),
            "value_weight": 2.0,
            "optimizer": "rmsprop",
            "normalize_advantages": True,
        },
    ],
    ids=["defaults", "clips", "weights"],
)
def test_losses_and_gradients_are_the_papers(settings: dict[str, Any]) -> None:
    agent, batch = linear_agent(**settings, max_grad_norm=0.0), batch_of()
    agent.env_steps = 50
    naive = naive_losses(agent, batch, 0.3 if settings["entropy_weight"] else 0.0)
    params = [*agent.net.policy.parameters(), *agent.net.value.parameters()]
    gradients = torch.autograd.grad(naive["loss"], params)
    metrics = agent.opt(batch)
    for name, value in naive.items():
        assert float(metrics[name]) == pytest.approx(value.item(), rel=1e-4), name
    for param, gradient in zip(params, gradients, strict=True):
        assert param.grad is not None
        torch.testing.assert_close(param.grad, gradient.float(), rtol=1e-4, atol=1e-5)


def metrics_of(agent: IMPALAAgent, batch: Columns) -> dict[str, float]:
    return {name: float(value) for name, value in agent.opt(batch).items()}


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_rows_that_are_no_transitions_do_not_matter(memory: str) -> None:
    config = IMPALAConfig(hidden=(8,), memory=memory, device="cpu")  # type: ignore[arg-type]
    batch = with_memory(config, batch_of())
    other = {name: column.copy() for name, column in batch.items()}
    other["action"][~batch["mask"]] = 0
    other["log_prob"][~batch["mask"]] = -9.0
    # What follows the end of a trajectory, but for the row right behind its last transition.
    other["obs"][2, 4:] = 7.0
    results = [metrics_of(config.build(CHOICES, CONTEXT), columns) for columns in (batch, other)]
    assert results[0] == results[1]


def with_memory(config: IMPALAConfig, batch: Columns) -> dict[str, Array]:
    columns = {c.name: c.shape for c in config.extra_columns(CHOICES)}
    if "memory" not in columns:
        return dict(batch)
    shape = (len(batch["mask"]), *columns["memory"])
    memory = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    return {**batch, "memory": memory}


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_episodes_of_one_trajectory_are_as_those_of_several(memory: str) -> None:
    """An episode of rows 0 and 1, its last observation in row 2, and another one from row 3 on."""
    config = IMPALAConfig(hidden=(8,), memory=memory, device="cpu")  # type: ignore[arg-type]
    together = with_memory(config, {name: c[:1] for name, c in batch_of().items()})
    apart: dict[str, Array] = {}
    for name, column in together.items():
        if name == "memory":
            apart[name] = np.concatenate([column, np.zeros_like(column)])
        else:
            # Three rows of each; that of the first one's last observation is no transition.
            ends = (4, 7) if name == "obs" else (3, 6)
            apart[name] = np.concatenate([column[:, : ends[0]], column[:, 3 : ends[1]]])
    results = [metrics_of(config.build(CHOICES, CONTEXT), columns) for columns in (together, apart)]
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-6)


def test_clips_that_contradict_each_other_are_refused() -> None:
    words = r"agent\.clip_c must be no larger than agent\.clip_rho=1\.0, got 2\.0"
    with pytest.raises(ConfigError, match=words):
        IMPALAConfig(clip_c=2.0)
