"""Tianshou, with the settings that Stable-Baselines3 is tuned with: better than its examples' own.

Learning rate and clipping range of PPO stay as they are at the start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.td3 import TD3
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.exploration import GaussianNoise
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

from benchmarks.learning.peer_parts import Act, Asked, Trained, main
from benchmarks.peers.interface import REPLAY_ROWS
from benchmarks.peers.tianshou import DQN_SETTINGS, SAC_SETTINGS
from benchmarks.peers.tianshou_parts import DQNParts, SACParts, make_envs, spaces_of

PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "envs": 8,
    "env_steps": 256,
    "batch": 256,
    "epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
    "threads": 1,
}
TD3_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch": 256,
    "hidden": [400, 300],
    "gamma": 0.98,
    "noise_std": 0.1,
    "learning_starts": 10_000,
    "envs": 1,
    "env_steps": 1,
    "opt_steps": 1,
    "threads": 2,
}


def dqn(asked: Asked) -> Trained:
    """Train DQN."""
    settings = DQN_SETTINGS
    _begin(asked, settings)
    observations, actions = spaces_of(asked.env)
    of_dqn = {name: settings[name] for name in ("target_every", "double", "n_step", "gamma")}
    algorithm = DQNParts(
        observations=observations,
        actions=actions,
        hidden=settings["hidden"],
        learning_rate=settings["learning_rate"],
        **of_dqn,
    ).build()
    env_steps, wall_s = _off_policy(algorithm, asked, settings)

    def act(obs: Any) -> Any:  # noqa: ANN401  # untyped where this is checked
        with torch.no_grad():
            return algorithm.policy.model(obs)[0].argmax(-1).numpy()

    return _trained(act, env_steps, wall_s, settings)


def sac(asked: Asked) -> Trained:
    """Train SAC."""
    _begin(asked, SAC_SETTINGS)
    observations, actions = spaces_of(asked.env)
    algorithm = SACParts(
        observations=observations,
        actions=actions,
        hidden=SAC_SETTINGS["hidden"],
        learning_rate=SAC_SETTINGS["learning_rate"],
    ).build()
    env_steps, wall_s = _off_policy(algorithm, asked, SAC_SETTINGS)

    def act(obs: Any) -> Any:  # noqa: ANN401  # untyped where this is checked
        with torch.no_grad():
            mean = algorithm.policy.actor(obs)[0][0]
        return algorithm.policy.map_action(mean.tanh().numpy())

    return _trained(act, env_steps, wall_s, SAC_SETTINGS)


def td3(asked: Asked) -> Trained:
    """Train TD3."""
    settings = TD3_SETTINGS
    _begin(asked, settings)
    observations, actions = spaces_of(asked.env)
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
    algorithm = TD3(
        policy=policy,
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        gamma=settings["gamma"],
    )
    env_steps, wall_s = _off_policy(algorithm, asked, settings)

    def act(obs: Any) -> Any:  # noqa: ANN401  # untyped where this is checked
        with torch.no_grad():
            return policy.map_action(policy.actor(obs)[0].numpy())

    return _trained(act, env_steps, wall_s, settings)


def ppo(asked: Asked) -> Trained:
    """Train PPO."""
    settings = PPO_SETTINGS
    _begin(asked, settings)
    observations, actions = spaces_of(asked.env)
    assert isinstance(actions, Discrete)
    nets = [
        Net(
            state_shape=observations.shape,
            hidden_sizes=settings["hidden"],
            activation=torch.nn.Tanh,
        )
        for _ in range(2)
    ]
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=nets[0], action_shape=actions.n, softmax_output=False),
        action_space=actions,
        observation_space=observations,
    )
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=nets[1]),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"]),
        eps_clip=settings["clip_range"],
        ent_coef=settings["ent_coef"],
        max_grad_norm=settings["max_grad_norm"],
        gae_lambda=settings["gae_lambda"],
        gamma=settings["gamma"],
    )
    buffer = VectorReplayBuffer(4 * settings["env_steps"], settings["envs"])
    collector = Collector(algorithm, make_envs(asked.env, "dummy", settings["envs"]), buffer)
    env_steps, began = 0, time.perf_counter()
    collector.reset()
    while env_steps < asked.env_steps:
        with policy_within_training_step(policy):
            env_steps += int(collector.collect(n_step=settings["env_steps"]).n_collected_steps)
            algorithm.update(buffer, settings["batch"], settings["epochs"])
        collector.reset_buffer(keep_statistics=True)
    wall_s = time.perf_counter() - began

    def act(obs: Any) -> Any:  # noqa: ANN401  # untyped where this is checked
        with torch.no_grad():
            return policy.actor(obs)[0].argmax(-1).numpy()

    return _trained(act, env_steps, wall_s, settings)


def _begin(asked: Asked, settings: Mapping[str, Any]) -> None:
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(asked.seed)
    np.random.seed(asked.seed)  # noqa: NPY002  # where Tianshou draws from


def _off_policy(
    algorithm: Any,  # noqa: ANN401  # untyped where this is checked
    asked: Asked,
    settings: Mapping[str, Any],
) -> tuple[int, float]:
    """Collect and learn in turn; return the environment steps taken, and the seconds."""
    envs = make_envs(asked.env, "dummy", settings["envs"])
    envs.seed(asked.seed)
    buffer = VectorReplayBuffer(REPLAY_ROWS, settings["envs"])
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    began = time.perf_counter()
    collector.reset()
    collector.collect(n_step=settings["learning_starts"], random=True)
    env_steps = int(settings["learning_starts"])
    while env_steps < asked.env_steps:
        if "decay_env_steps" in settings:
            left = 1.0 - env_steps / settings["decay_env_steps"]
            algorithm.policy.set_eps_training(max(0.04, left))
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=settings["env_steps"])
            env_steps += settings["env_steps"]
            for _ in range(settings["opt_steps"]):
                algorithm.update(buffer, settings["batch"])
    return env_steps, time.perf_counter() - began


def _trained(act: Act, env_steps: int, wall_s: float, settings: Mapping[str, Any]) -> Trained:
    return Trained(
        act=act,
        env_steps=env_steps,
        wall_s=wall_s,
        version=version("tianshou"),
        settings=settings,
    )


if __name__ == "__main__":
    main(__doc__, {"dqn": dqn, "ppo": ppo, "sac": sac, "td3": td3})
