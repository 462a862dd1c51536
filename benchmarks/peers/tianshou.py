"""Tianshou: collectors and environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PIXEL_FEATURES,
    Request,
    Stage,
    Work,
    convolutions,
    make_env,
    measure_once,
    stepping,
)

VECTOR_ENVS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


def make_envs(env_id: str, kind: str, n: int, wait: int = 0) -> Any:  # noqa: ANN401  # untyped
    """Return environments of one kind; they step on once `wait` of them have stepped."""
    return VECTOR_ENVS[kind]([partial(make_env, env_id)] * n, wait_num=wait or None)


def spaces_of(env_id: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the spaces of observations and of actions."""
    env = make_env(env_id)
    return env.observation_space, env.action_space


class PixelNet(nn.Module):
    """The convolutions of Mnih et al. (2015), then hidden layers of 64 and 64."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        layers = [nn.Linear(PIXEL_FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions(), *layers, nn.Linear(64, n_actions))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:  # noqa: ANN401
        """Return the values of actions."""
        return self.layers(torch.as_tensor(obs, dtype=torch.float32)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNParts:
    """Settings of DQN."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]

    def build(self, model: nn.Module | None = None) -> DQN:
        """Build the algorithm."""
        policy = DiscreteQLearningPolicy(
            model=model
            or Net(
                state_shape=self.observations.shape,
                action_shape=self.actions.n,
                hidden_sizes=self.hidden,
            ),
            action_space=self.actions,
            observation_space=self.observations,
            eps_training=0.1,
        )
        return DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=1e-3),
            target_update_freq=500,
            is_double=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SACParts:
    """Settings of SAC."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]

    def build(self) -> SAC:
        """Build the algorithm."""
        shape = {"state_shape": self.observations.shape, "hidden_sizes": self.hidden}
        actions = self.actions.shape
        policy = SACPolicy(
            actor=ContinuousActorProbabilistic(
                preprocess_net=Net(**shape),
                action_shape=actions,
                unbounded=True,
                conditioned_sigma=True,
            ),
            action_space=self.actions,
            observation_space=self.observations,
        )
        critics = [
            ContinuousCritic(preprocess_net=Net(**shape, action_shape=actions, concat=True))
            for _ in range(2)
        ]
        adam = AdamOptimizerFactory(lr=3e-4)
        return SAC(
            policy=policy,
            policy_optim=adam,
            critic=critics[0],
            critic_optim=adam,
            critic2=critics[1],
            critic2_optim=adam,
            alpha=AutoAlpha(-float(np.prod(actions)), 0.0, adam),
        )


SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "rows": 65_536, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "rows": 65_536, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "rows": 8_192, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "threads": 1},
}

TURN_STEPS = 32


def sampling(asked: Request) -> Work:
    """Collect into a replay buffer."""
    observations, actions = spaces_of(asked.env)
    if isinstance(actions, gymnasium.spaces.Discrete):
        parts = DQNParts(observations=observations, actions=actions, hidden=(64, 64))
        algorithm = parts.build(PixelNet(int(actions.n)) if asked.env == ATARI else None)
    else:
        algorithm = SACParts(observations=observations, actions=actions, hidden=(64, 64)).build()
    n = asked.settings["envs"]
    collector = Collector(
        algorithm,
        make_envs(asked.env, asked.settings["kind"], n),
        VectorReplayBuffer(asked.settings["rows"], n),
        exploration_noise=True,
    )
    collector.reset()
    collect = _training_step(algorithm, lambda: collector.collect(n_step=TURN_STEPS * n))
    return Work(turn=lambda: int(collect().n_collected_steps), close=collector.close)


def env(asked: Request) -> Work:
    """Step environments with precomputed random actions."""
    n = int(asked.settings["envs"])
    envs = make_envs(asked.env, asked.settings["kind"], n)
    _, space = spaces_of(asked.env)
    space.seed(asked.seed)
    envs.reset()

    def step(action: Any) -> None:  # noqa: ANN401  # an array
        _, _, terminated, truncated, _ = envs.step(action)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)

    return replace(
        stepping(step, lambda: np.array([space.sample() for _ in range(n)]), n), close=envs.close
    )


def _training_step(algorithm: Any, work: Callable[[], Any]) -> Callable[[], Any]:  # noqa: ANN401
    """Train as the library's trainers do."""

    def turn() -> Any:  # noqa: ANN401  # whatever it returns
        with policy_within_training_step(algorithm.policy):
            return work()

    return turn


if __name__ == "__main__":
    stages = {"sampling": Stage(sampling, SAMPLING), "env": Stage(env, ENV)}
    measure_once("tianshou", version("tianshou"), __doc__, stages)
