"""Tianshou's networks and algorithms, put together as its own examples do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
from tianshou.algorithm.modelfree.td3 import TD3
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import ReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

from benchmarks.peers.interface import PIXEL_FEATURES, convolutions, make_env

VECTOR_ENVS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


def make_envs(env_id: str, kind: str, n: int, wait: int = 0) -> Any:  # noqa: ANN401  # untyped
    """Return environments of one kind; they step on once `wait` of them have stepped."""
    return VECTOR_ENVS[kind]([partial(make_env, env_id)] * n, wait_num=wait or None)


def spaces_of(env_id: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the spaces of observations and of actions."""
    env = make_env(env_id)
    return env.observation_space, env.action_space


class PixelNet(nn.Module):
    """The convolutions of Mnih et al. (2015), then 64x64."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        layers = [nn.Linear(PIXEL_FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions(), *layers, nn.Linear(64, n_actions))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:  # noqa: ANN401
        """Return the values of actions."""
        return self.layers(torch.as_tensor(obs, dtype=torch.float32)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNParts:
    """Of a DQN."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]
    learning_rate: float = 1e-3
    target_every: int = 500
    gamma: float = 0.99
    epsilon: float = 0.1
    double: bool = False
    n_step: int = 1

    def build(self, model: nn.Module | None = None) -> DQN:
        """Put it together."""
        policy = DiscreteQLearningPolicy(
            model=model
            or Net(
                state_shape=self.observations.shape,
                action_shape=self.actions.n,
                hidden_sizes=self.hidden,
            ),
            action_space=self.actions,
            observation_space=self.observations,
            eps_training=self.epsilon,
        )
        return DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=self.learning_rate),
            gamma=self.gamma,
            target_update_freq=self.target_every,
            n_step_return_horizon=self.n_step,
            is_double=self.double,
            huber_loss_delta=1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SACParts:
    """Of a SAC."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005

    def build(self) -> SAC:
        """Put it together."""
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
        adam = AdamOptimizerFactory(lr=self.learning_rate)
        return SAC(
            policy=policy,
            policy_optim=adam,
            critic=critics[0],
            critic_optim=adam,
            critic2=critics[1],
            critic2_optim=adam,
            tau=self.tau,
            gamma=self.gamma,
            alpha=AutoAlpha(-float(np.prod(actions)), 0.0, adam),
        )


def make_td3(observations: Any, actions: Any, settings: Mapping[str, Any]) -> TD3:  # noqa: ANN401
    """Put TD3 together."""
    shape = {"state_shape": observations.shape, "hidden_sizes": settings["hidden"]}
    size = actions.shape
    policy = ContinuousDeterministicPolicy(
        actor=ContinuousActorDeterministic(
            preprocess_net=Net(**shape), action_shape=size, max_action=1.0
        ),
        exploration_noise=GaussianNoise(sigma=settings["noise_std"]),
        action_space=actions,
        observation_space=observations,
    )
    critics = [
        ContinuousCritic(preprocess_net=Net(**shape, action_shape=size, concat=True))
        for _ in range(2)
    ]
    adam = AdamOptimizerFactory(lr=settings["learning_rate"])
    return TD3(
        policy=policy,
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        gamma=settings["gamma"],
    )


def make_ppo(observations: Any, actions: Any, settings: Mapping[str, Any]) -> PPO:  # noqa: ANN401
    """Put PPO together."""
    nets = [
        Net(
            state_shape=observations.shape,
            hidden_sizes=settings["hidden"],
            activation=nn.Tanh,
        )
        for _ in range(2)
    ]
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=nets[0], action_shape=actions.n, softmax_output=False),
        action_space=actions,
        observation_space=observations,
    )
    return PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=nets[1]),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"]),
        eps_clip=settings["clip_range"],
        ent_coef=settings["ent_coef"],
        max_grad_norm=settings["max_grad_norm"],
        gae_lambda=settings["gae_lambda"],
        gamma=settings["gamma"],
    )


def make_buffer(rows: Mapping[str, Any]) -> ReplayBuffer:
    """Return a full buffer of these rows."""
    nothing = np.zeros_like(rows["terminated"])
    return ReplayBuffer.from_data(
        obs=rows["obs"],
        act=rows["action"],
        rew=rows["reward"],
        terminated=rows["terminated"],
        truncated=nothing,
        done=rows["terminated"],
        obs_next=rows["next_obs"],
    )
