"""Stable-Baselines3, with the tuned settings of its zoo.

https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/{dqn,ppo,sac,td3}.yml.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks.learning.peer_parts import Asked, Trained, main
from benchmarks.peers.sb3 import DQN_SETTINGS, SAC_SETTINGS, SAC_THREADS

PPO_SETTINGS: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
}
PPO_ENVS = 8
PPO_LEARNING_RATE = 1e-3
PPO_CLIP_RANGE = 0.2
"""These two fall to 0 over the run."""

TD3_SETTINGS: dict[str, Any] = {
    "gamma": 0.98,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "learning_rate": 1e-3,
    "policy_kwargs": {"net_arch": [400, 300]},
}
TD3_NOISE = 0.1


def dqn(asked: Asked) -> Trained:
    """Train DQN."""
    torch.set_num_threads(1)  # with more it is slower
    model = DQN("MlpPolicy", asked.env, seed=asked.seed, device="cpu", **DQN_SETTINGS)
    return _trained(model, asked, DQN_SETTINGS)


def ppo(asked: Asked) -> Trained:
    """Train PPO on several environments."""
    torch.set_num_threads(1)  # the same
    model = PPO(
        "MlpPolicy",
        make_vec_env(asked.env, PPO_ENVS, seed=asked.seed),
        seed=asked.seed,
        device="cpu",
        learning_rate=lambda left: left * PPO_LEARNING_RATE,
        clip_range=lambda left: left * PPO_CLIP_RANGE,
        **PPO_SETTINGS,
    )
    shown = {**PPO_SETTINGS, "n_envs": PPO_ENVS, "learning_rate": "lin_0.001"}
    return _trained(model, asked, {**shown, "clip_range": "lin_0.2"})


def sac(asked: Asked) -> Trained:
    """Train SAC."""
    torch.set_num_threads(SAC_THREADS)
    model = SAC("MlpPolicy", asked.env, seed=asked.seed, device="cpu", **SAC_SETTINGS)
    return _trained(model, asked, SAC_SETTINGS)


def td3(asked: Asked) -> Trained:
    """Train TD3."""
    torch.set_num_threads(SAC_THREADS)
    model = TD3(
        "MlpPolicy",
        asked.env,
        seed=asked.seed,
        device="cpu",
        action_noise=NormalActionNoise(np.zeros(1), np.full(1, TD3_NOISE)),
        **TD3_SETTINGS,
    )
    return _trained(model, asked, {**TD3_SETTINGS, "noise_std": TD3_NOISE})


def _trained(model: Any, asked: Asked, settings: dict[str, Any]) -> Trained:  # noqa: ANN401
    began = time.perf_counter()
    model.learn(total_timesteps=asked.env_steps)
    return Trained(
        wall_s=time.perf_counter() - began,
        act=lambda obs: model.predict(obs, deterministic=True)[0],
        env_steps=model.num_timesteps,
        version=stable_baselines3.__version__,
        settings={**settings, "threads": torch.get_num_threads()},
    )


if __name__ == "__main__":
    main(__doc__, {"dqn": dqn, "ppo": ppo, "sac": sac, "td3": td3})
