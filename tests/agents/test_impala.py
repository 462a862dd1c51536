"""IMPALA: losses and gradients against the paper's sums, memory, settings, and a cue recalled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.impala import IMPALAAgent, IMPALAConfig
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync

GAMMA = 0.9
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


class Naive:
    """The losses of Espeholt et al. (2018), section 4.2, one row after the other."""

    def __init__(self, agent: IMPALAAgent, batch: Columns) -> None:
        self.config = agent.config
        self.batch = batch
        self.policy = agent.net.policy.weight.detach().double().numpy().copy()
        self.policy_bias = agent.net.policy.bias.detach().double().numpy().copy()
        self.value = agent.net.value.weight.detach().double().numpy().copy()
        self.value_bias = agent.net.value.bias.detach().double().numpy().copy()
        self.targets, self.advantages = self._vtrace()

    def _log_pi(self, b: int, t: int) -> Array:
        logits = self.policy @ self.batch["obs"][b, t] + self.policy_bias
        log_pi: Array = logits - np.log(np.exp(logits).sum())
        return log_pi

    def _v(self, b: int, t: int) -> float:
        return float((self.value @ self.batch["obs"][b, t] + self.value_bias)[0])

    def _vtrace(self) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        batch, config = self.batch, self.config
        targets: dict[tuple[int, int], float] = {}
        advantages: dict[tuple[int, int], float] = {}
        n, length = batch["mask"].shape
        for b in range(n):
            correction = 0.0  # of the row after this one
            for t in reversed(range(length)):
                if not batch["mask"][b, t]:
                    correction = 0.0
                    continue
                ratio = math.exp(
                    self._log_pi(b, t)[batch["action"][b, t]] - batch["log_prob"][b, t]
                )
                gamma, reward = float(batch["discount"][b, t]), float(batch["reward"][b, t])
                if config.reward_clip:
                    reward = max(-config.reward_clip, min(config.reward_clip, reward))
                after = self._v(b, t + 1)
                advantages[b, t] = min(config.clip_pg_rho, ratio) * (
                    reward + gamma * (after + correction) - self._v(b, t)
                )
                delta = min(config.clip_rho, ratio) * (reward + gamma * after - self._v(b, t))
                c = config.lambda_ * min(config.clip_c, ratio)
                correction = delta + gamma * c * correction
                targets[b, t] = self._v(b, t) + correction
        return targets, advantages

    def losses(self) -> dict[str, float]:
        """Return losses of the current parameters, with unchanged targets and advantages."""
        count = len(self.targets)
        policy = value = entropy = 0.0
        for (b, t), target in self.targets.items():
            log_pi = self._log_pi(b, t)
            policy -= self.advantages[b, t] * log_pi[self.batch["action"][b, t]] / count
            value += (target - self._v(b, t)) ** 2 / count
            entropy -= float((np.exp(log_pi) * log_pi).sum()) / count
        assert isinstance(self.config.entropy_weight, float)
        loss = policy + self.config.value_weight * value - self.config.entropy_weight * entropy
        return {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy}

    def gradient(self, of: Array) -> Array:
        """Return how the loss changes with some of the parameters, by trying."""
        gradient = np.zeros_like(of)
        for index in np.ndindex(of.shape):
            before, ends = of[index], []
            for change in (1e-5, -1e-5):
                of[index] = before + change
                ends.append(self.losses()["loss"])
            of[index] = before
            gradient[index] = (ends[0] - ends[1]) / 2e-5
        return gradient


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_rho": 2.0, "clip_c": 0.5, "clip_pg_rho": 0.7, "lambda_": 0.9},
        {"reward_clip": 0.5, "entropy_weight": 0.3, "value_weight": 2.0, "optimizer": "rmsprop"},
    ],
    ids=["defaults", "clips", "weights"],
)
def test_losses_and_gradients_are_the_papers(settings: dict[str, Any]) -> None:
    agent, batch = linear_agent(**settings, max_grad_norm=0.0), batch_of()
    naive = Naive(agent, batch)
    metrics = agent.opt(batch)
    for name, value in naive.losses().items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-4), name
    tried = {
        agent.net.policy.weight: naive.policy,
        agent.net.policy.bias: naive.policy_bias,
        agent.net.value.weight: naive.value,
        agent.net.value.bias: naive.value_bias,
    }
    for param, numbers in tried.items():
        assert param.grad is not None
        np.testing.assert_allclose(param.grad.numpy(), naive.gradient(numbers), atol=1e-4)


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


@pytest.mark.behaviour(number=35)
@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_gpu_learns_what_a_cpu_learns(memory: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        config = IMPALAConfig(hidden=(8,), memory=memory, device=device)
        batch = with_memory(config, batch_of())
        agent = config.build(CHOICES, CONTEXT)
        results.append([metrics_of(agent, batch) for _ in range(3)])
        assert agent.act(batch["obs"][:, 0]).action.shape == (3,)
    for cpu, gpu in zip(*results, strict=True):
        assert gpu == pytest.approx(cpu, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("env_id", "memory"), [("CartPole-v1", "lstm"), ("Pendulum-v1", "none"), ("CartPole-v1", "gru")]
)
def test_learner_sees_actions_as_likely_as_the_actor_did(env_id: str, memory: str) -> None:
    """Nothing is learned, so that all ratios are 1, also behind episodes and evaluations."""
    config = IMPALAConfig(
        hidden=(8,),
        memory=memory,  # type: ignore[arg-type]
        learning_rate=0.0,
        device="cpu",
    )
    play = EpisodeEvaluatorConfig(episodes=2, max_episode_steps=30)
    recorder = MemoryRecorder()
    train_sync(
        config,
        EnvConfig(id=env_id, n_envs=3).build,
        SyncConfig(
            replay=TrajectoryQueueConfig(gamma=GAMMA),
            trainer=TrainerConfig(batch_size=120),
            record=RecordConfig(interval_opt_steps=1, interval_s=0.0),
            evaluate=EvaluationConfig(interval_opt_steps=1, play=play),
        ),
        stop=MaxOptSteps(4),
        recorder=recorder,
    )
    assert sum("eval_reward" in record for record in recorder.records) >= 3
    ratios = [record["agent/rho_mean"] for record in recorder.records if "agent/loss" in record]
    assert len(ratios) >= 4
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)


@pytest.mark.behaviour(number=64)
def test_learning_rate_and_entropy_follow_schedules() -> None:
    agent = linear_agent(
        learning_rate=Schedule.linear(1e-2, 0.0, 100), entropy_weight=Schedule.linear(1.0, 0.0, 100)
    )
    batch = batch_of()
    first = metrics_of(agent, batch)
    assert first["learning_rate"] == pytest.approx(1e-2)
    expected = first["policy_loss"] + 0.5 * first["value_loss"] - first["entropy"]
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    agent.env_steps = 100
    before = {name: value.copy() for name, value in agent.model_info().params.items()}
    last = metrics_of(agent, batch)
    assert last["learning_rate"] == 0.0
    expected = last["policy_loss"] + 0.5 * last["value_loss"]
    assert last["loss"] == pytest.approx(expected, rel=1e-5)
    assert all(np.array_equal(v, before[n]) for n, v in agent.model_info().params.items())


def test_advantages_are_normalised_over_transitions() -> None:
    batch, config = batch_of(), linear_agent().config
    naive = Naive(linear_agent(), batch)
    values = np.array(list(naive.advantages.values()))
    scaled = (values - values.mean()) / values.std()
    naive.advantages = dict(zip(naive.advantages, scaled.tolist(), strict=True))
    metrics = metrics_of(linear_agent(normalize_advantages=True), batch)
    assert config.normalize_advantages is False
    assert metrics["policy_loss"] == pytest.approx(naive.losses()["policy_loss"], rel=1e-4)


def test_clips_that_contradict_each_other_are_refused() -> None:
    words = r"agent\.clip_c must be no larger than agent\.clip_rho=1\.0, got 2\.0"
    with pytest.raises(ConfigError, match=words):
        IMPALAConfig(clip_c=2.0)


@pytest.mark.parametrize("settings", [{"memory": "gru"}, {"hidden": ()}])
def test_heads_answer_in_full_precision_beside_bfloat16(settings: dict[str, Any]) -> None:
    """Whatever their features come in: a memory's are never in less, nor is an observation."""
    config = IMPALAConfig(**{"hidden": (8,), **settings}, precision="bfloat16", device="cpu")
    agent = config.build(CHOICES, CONTEXT)
    obs = torch.rand(4, 6, *OBSERVATION.shape)
    with config.precision_on(torch.device("cpu"))(), torch.no_grad():
        features = agent.net.torsos[0](obs.flatten(0, 1))
        answers = agent.net.unroll(obs, torch.zeros(4, agent.net.memory_size))
    assert features.dtype == (torch.bfloat16 if config.hidden else torch.float32)
    for answer in answers:
        assert answer.dtype == torch.float32
        assert not answer.bfloat16().float().equal(answer), "no more exact than bfloat16"
