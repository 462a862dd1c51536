"""Short runs of agents: with all settings on, and with probabilities that the learner repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.actor.trajectory_processor import Trajectories, TrajectoryConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_sync
from tests.contracts.test_agent import CASES, batch_for, observations

PRIORITIZED = RunConfig(
    evaluate=EvaluationConfig(where="off"),
    replay=PrioritizedReplayConfig(capacity=2000, n_step=3),
    trainer=AsyncTrainerConfig(batch_size=16),
    limiter=RateLimiterConfig(min_size=300),
)
ON_POLICY = RunConfig(
    evaluate=EvaluationConfig(
        interval_opt_steps=1, play=EpisodeEvaluatorConfig(episodes=2, max_episode_steps=30)
    ),
    replay=TrajectoryQueueConfig(gamma=0.9),
    trainer=AsyncTrainerConfig(batch_size=120),
    record=RecordConfig(interval_opt_steps=1, interval_s=0.0),
)

LOSSES = {"agent/loss", "agent/critic_loss"}


def records_of_a_run(
    env_id: str, agent: AgentConfig, config: RunConfig, opt_steps: int, **parts: Any
) -> list[dict[str, float]]:
    """Return what an agent reports in a short run, step by step."""
    recorder = MemoryRecorder()
    make_env = EnvConfig(id=env_id, n_envs=4).build
    train_sync(agent, make_env, config, stop=MaxOptSteps(opt_steps), recorder=recorder, **parts)
    records = [record for record in recorder.records if record.keys() & LOSSES]
    assert records[-1]["opt_steps"] == opt_steps
    return [
        {name: float(value) for name, value in record.items() if name.startswith("agent/")}
        for record in records
    ]


_SMALL: dict[str, Any] = {"hidden": (16,), "device": "cpu"}
_ALL: dict[str, Any] = {**_SMALL, "normalize_obs": True, "normalize_reward": True}
_PPO = PPOConfig(
    activation="relu",
    shared_torso=True,
    state_std=True,
    initial_log_std=-0.5,
    epochs=2,
    learning_rate=Schedule.linear(1e-3, 0.0, 10_000),
    clip=Schedule.linear(0.3, 0.1, 10_000),
    entropy_weight=1e-3,
    dual_clip=3.0,
    value_clip=0.2,
    target_kl=0.05,
    precision="bfloat16",
    **_ALL,
)
EVERYTHING: dict[str, tuple[str, Any]] = {
    "dqn": ("CartPole-v1", DQNConfig(actor_priorities=True, precision="bfloat16", **_ALL)),
    "sac": ("Pendulum-v1", SACConfig(random_env_steps=50, precision="bfloat16", **_ALL)),
    "rainbow": ("CartPole-v1", RainbowConfig(n_atoms=11, **_ALL)),
    "iqn": ("CartPole-v1", IQNConfig(noisy=True, dueling=True, **_ALL)),
    "ppo": ("Pendulum-v1", _PPO),
    "ppo, lstm": ("Pendulum-v1", replace(_PPO, memory="lstm", correction="vtrace")),
}


@pytest.mark.parametrize(("env_id", "agent"), EVERYTHING.values(), ids=EVERYTHING)
def test_runs_with_everything_on_stay_finite_and_repeat_themselves(
    env_id: str, agent: AgentConfig
) -> None:
    run = (ON_POLICY, 4) if isinstance(agent, PPOConfig) else (PRIORITIZED, 60)
    metrics = records_of_a_run(env_id, agent, *run)[-1]
    assert np.isfinite(list(metrics.values())).all()
    assert records_of_a_run(env_id, agent, *run)[-1] == metrics


@pytest.mark.parametrize(
    ("env_id", "agent", "cut"),
    [
        ("CartPole-v1", IMPALAConfig(memory="lstm", learning_rate=0.0, **_SMALL), {}),
        ("Pendulum-v1", IMPALAConfig(learning_rate=0.0, **_SMALL), {}),
        ("CartPole-v1", PPOConfig(memory="gru", **_SMALL), {"max_length": 8}),
        ("CartPole-v1", PPOConfig(memory="gru", **_SMALL), {"clip_length": 5}),
    ],
)
def test_learner_sees_actions_as_likely_as_the_actor_did(
    env_id: str, agent: AgentConfig, cut: dict[str, int]
) -> None:
    """Before anything is learned, also behind episodes, evaluations, and where rows are cut."""
    parts = {"make_processor": lambda: Trajectories(TrajectoryConfig(**cut))} if cut else {}
    records = records_of_a_run(env_id, agent, ON_POLICY, 4, **parts)
    ratios = {"agent/rho_mean": 1.0, "agent/lag_kl": 0.0}
    found = [(record[name], ratios[name]) for record in records for name in record.keys() & ratios]
    assert len(found) >= 4
    assert [mine for mine, _ in found] == pytest.approx([right for _, right in found], abs=1e-5)


@pytest.mark.behaviour(number=35)
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ppo", "ppo-lstm", "impala", "impala-gru", "sac"])
def test_gpu_learns_what_a_cpu_learns(name: str) -> None:
    case, results = CASES[name], []
    once = {"epochs": 1, "minibatches": 1} if isinstance(case.config, PPOConfig) else {}
    for device in ("cpu", "cuda"):
        config = replace(case.config, device=device, **once)  # type: ignore[type-var]
        agent = replace(case, config=config).build()
        for number in range(2):
            numbers = agent.opt(batch_for(case, number))
            results.append({name: float(value) for name, value in numbers.items()})
        assert len(agent.act(observations()).action) == 6
    assert results[2:] == [pytest.approx(numbers, rel=1e-3, abs=1e-4) for numbers in results[:2]]
