"""That algorithms learn: values known by hand, and what only a memory can know."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.c51 import C51Config
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Array
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, ReachesUpperBound
from asyncrl.replay.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_sync
from tests.agents.chain import CHAIN, chain_replay, check_chain

_NET: dict[str, Any] = {"hidden": (32, 32), "device": "cpu"}
_ATOMS: dict[str, Any] = {"n_atoms": 21, "v_min": 0.0, "v_max": 1.0, "learning_rate": 5e-3}
# Steps that stay large jitter around the solution with copies at intervals.
_COPIED: dict[str, Any] = {
    "tau": 0.0,
    "target_interval_opt_steps": 25,
    "learning_rate": Schedule.linear(3e-3, 1e-5, 1500),
}


@pytest.mark.parametrize(
    ("config", "opt_steps", "prioritized"),
    [
        (DQNConfig(loss="huber", **_COPIED, **_NET), 1500, False),
        (C51Config(**_ATOMS, **_NET), 600, False),
        (IQNConfig(n_acting_quantiles=8, learning_rate=5e-3, **_NET), 800, False),
        (RainbowConfig(**_ATOMS, **_NET), 600, True),
    ],
    ids=["dqn", "c51", "iqn", "rainbow"],
)
def test_chain_is_solved_to_its_known_values(
    config: DQNConfig, opt_steps: int, prioritized: bool
) -> None:
    agent = config.build(CHAIN, PolicyContext(seed=0, n_envs=8))
    replay = chain_replay(PrioritizedReplayConfig(capacity=10, gamma=0.9) if prioritized else None)
    for step in range(opt_steps):
        agent.env_steps = step
        batch = replay.sample(32)
        agent.opt(batch)
        if isinstance(replay, PrioritizedReplay):
            replay.update_priorities(batch["index"], agent.priorities())
    check_chain(agent, abs=0.05)


class Recall(gym.Env[Array, Any]):
    """Shows a number once, and pays for the action that names it a few steps later."""

    _STEPS = 4

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, Any]:
        super().reset(seed=seed)
        self._number, self._step = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self._number - 1.0, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, Any]:
        self._step += 1
        over = self._step == self._STEPS
        last = self._step == self._STEPS - 1
        return np.array([0.0, last], np.float32), over * (action == self._number), over, False, {}


ON_POLICY = RunConfig(
    replay=TrajectoryQueueConfig(),
    trainer=AsyncTrainerConfig(batch_size=512),
    evaluate=EvaluationConfig(interval_opt_steps=5, play=EpisodeEvaluatorConfig(episodes=20)),
)
SEQUENCES = RunConfig(
    replay=PrioritizedSequenceReplayConfig(sequence_length=4, burn_in=1, stride=2),
    trainer=AsyncTrainerConfig(batch_size=32),
    limiter=RateLimiterConfig(samples_per_insert=4.0, min_size=250),
    segment=SegmentConfig(length=16),
)
_R2D2 = R2D2Config(
    hidden=(16,),
    encoder_hidden=(16,),
    memory="gru",
    memory_units=16,
    burn_in=1,
    learning_rate=5e-3,
    device="cpu",
    exploration=EpsilonGreedy(epsilon=0.3),
)
_SMALL: dict[str, Any] = {"hidden": (16,), "device": "cpu"}


def best_score(
    agent: AgentConfig, env: str, config: RunConfig, *, enough: float, env_steps: int
) -> float | None:
    """Train up to a score, or up to a number of steps."""
    n_envs = 32 if config is ON_POLICY else 8
    make_env = partial(EnvConfig(id=env, n_envs=n_envs).build)
    stop = ReachesUpperBound("eval_reward", enough) | MaxEnvSteps(env_steps)
    return train_sync(agent, make_env, config, stop=stop).best_score


@pytest.mark.behaviour(number=6)
@pytest.mark.parametrize(
    ("agent", "config", "recalls"),
    [
        (PPOConfig(**_SMALL), ON_POLICY, False),
        (PPOConfig(memory="gru", **_SMALL), ON_POLICY, True),
        (IMPALAConfig(memory="lstm", learning_rate=1e-2, **_SMALL), ON_POLICY, True),
        pytest.param(_R2D2, SEQUENCES, True, marks=pytest.mark.slow),
    ],
    ids=["ppo without one", "ppo", "impala", "r2d2"],
)
def test_what_was_seen_earlier_is_used_with_a_memory_alone(
    agent: AgentConfig, config: RunConfig, recalls: bool
) -> None:
    steps = 60_000 if recalls else 5_000
    score = best_score(agent, f"{__name__}:Recall", config, enough=1.0, env_steps=steps)
    assert (score == 1.0) is recalls


_FASTER: dict[str, Any] = {
    "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "tau": 0.02,
    "device": "cpu",
}
_DISCRETE_SAC = DiscreteSACConfig(
    hidden=(64, 64), initial_alpha=0.1, random_env_steps=500, **_FASTER
)
OFF_POLICY = RunConfig(limiter=RateLimiterConfig(samples_per_insert=32.0, min_size=250))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "env", "config", "enough"),
    [
        (PPOConfig(device="cpu"), "CartPole-v1", ON_POLICY, 300.0),
        (PPOConfig(device="cpu", correction="vtrace"), "CartPole-v1", ON_POLICY, 300.0),
        (_DISCRETE_SAC, "CartPole-v1", OFF_POLICY, 100.0),
        (TD3Config(hidden=(64, 64), **_FASTER), "Pendulum-v1", OFF_POLICY, -450.0),
    ],
    ids=["ppo", "ppo with vtrace", "discrete sac", "td3"],
)
def test_small_tasks_are_learned(
    agent: AgentConfig, env: str, config: RunConfig, enough: float
) -> None:
    """Chance gets 22 on CartPole, and -1230 on Pendulum."""
    score = best_score(agent, env, config, enough=enough, env_steps=60_000)
    assert score is not None
    assert score >= enough
