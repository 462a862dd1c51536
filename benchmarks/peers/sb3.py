"""Stable-Baselines3: PPO's rollouts, and trainings with DQN, PPO, SAC and TD3.

It has no prioritized replay.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    SIZES,
    UPDATES,
    Request,
    Sizes,
    Stage,
    Training,
    Work,
    make_env,
    make_rows,
    measure_once,
    stepping,
)

ENVS: dict[str, dict[str, Any]] = {
    CARTPOLE: {"processes": False, "envs": 64, "threads": 1},
    CHEETAH: {"processes": True, "envs": 8, "threads": 1},
    ATARI: {"processes": True, "envs": 8, "threads": 1},
}
"""The fastest on two cores, of 2 to 64 environments, in one process or one process each."""

# https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml. Small batches are slower with
# more than one thread.
DQN_SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
    "threads": 1,
}

PIXEL_POLICY: dict[str, Any] = {
    "features_extractor_kwargs": {"features_dim": 64},
    "net_arch": {"pi": [64], "vf": [64]},
}
"""Hidden layers of 64 and 64 behind the convolutions, shared by policy and value."""

N_STEPS = 128
CHUNK_OPT_STEPS = 50
FOREVER = 2**40


class ShapesOnly(gymnasium.Env[Any, Any]):
    """Declares the spaces of observations and actions; it is never stepped."""

    def __init__(self, sizes: Sizes, *, discrete: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (sizes.obs,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (sizes.actions,), np.float32)
        if discrete:
            self.action_space = gymnasium.spaces.Discrete(sizes.actions)


def make_envs(asked: Request) -> Any:  # noqa: ANN401  # untyped here
    """Return environments without `Monitor`, whose output is not used here."""
    vec_env = SubprocVecEnv if asked.settings["processes"] else DummyVecEnv
    return vec_env([partial(make_env, asked.env)] * asked.settings["envs"])


def sampling(asked: Request) -> Work:
    """Collect PPO's rollouts without learning from them."""
    n = N_STEPS * int(asked.settings["envs"])
    atari = asked.env == ATARI
    model = PPO(
        "CnnPolicy" if atari else "MlpPolicy",
        make_envs(asked),
        n_steps=N_STEPS,
        batch_size=64 if atari else n,
        policy_kwargs=PIXEL_POLICY if atari else {"net_arch": [64, 64]},
        seed=asked.seed,
        device="cpu",
    )
    _, callback = model._setup_learn(FOREVER)  # noqa: SLF001  # as `learn` begins

    def turn() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=N_STEPS)
        return n

    return Work(turn=turn, close=model.env.close)


def env(asked: Request) -> Work:
    """Step environments with precomputed random actions."""
    envs = make_envs(asked)
    envs.action_space.seed(asked.seed)
    envs.reset()
    n = int(asked.settings["envs"])
    return stepping(envs.step, lambda: np.array([envs.action_space.sample() for _ in range(n)]), n)


def updates(asked: Request) -> Work:
    """Optimise from a full replay buffer."""
    sizes, n_rows = SIZES[asked.stage], asked.settings["rows"]
    model = (DQN if asked.discrete else SAC)(
        "MlpPolicy",
        ShapesOnly(sizes, discrete=asked.discrete),
        batch_size=sizes.batch,
        buffer_size=n_rows,
        policy_kwargs={"net_arch": list(sizes.hidden)},
        seed=asked.seed,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    rows = make_rows(sizes, n_rows, discrete=asked.discrete)
    buffer = model.replay_buffer
    buffer.observations[:, 0] = rows["obs"]
    buffer.next_observations[:, 0] = rows["next_obs"]
    buffer.actions[:, 0] = rows["action"].reshape(n_rows, -1)
    buffer.rewards[:, 0] = rows["reward"]
    buffer.dones[:, 0] = rows["terminated"]
    buffer.full = True

    def turn() -> int:
        model.train(gradient_steps=CHUNK_OPT_STEPS, batch_size=sizes.batch)
        return CHUNK_OPT_STEPS

    return Work(turn=turn)


def training(asked: Request) -> Training:
    """Train with the settings asked for, DQN with the zoo's by default."""
    settings = {name: value for name, value in asked.settings.items() if name != "threads"}
    algorithm = {"dqn": DQN, "ppo": PPO, "sac": SAC, "td3": TD3}[asked.stage.removeprefix("score-")]
    envs = make_vec_env(asked.env, settings.pop("n_envs", 1), seed=asked.seed)
    if algorithm is TD3:
        std = settings.pop("noise_std")
        settings["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, std))
    model = algorithm("MlpPolicy", envs, seed=asked.seed, device="cpu", **settings)

    def run(env_steps: int) -> int:
        model.learn(env_steps)
        return int(model._n_updates)  # noqa: SLF001  # it has no other counter of updates

    return Training(run=run, act=lambda obs: model.predict(obs, deterministic=True)[0])


if __name__ == "__main__":
    measure_once(
        "sb3",
        stable_baselines3.__version__,
        __doc__,
        {
            "sampling": Stage(sampling, ENVS),
            "env": Stage(env, ENVS),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "score-dqn": Stage(training, DQN_SETTINGS),
            "score-sac": Stage(training),
            "score-ppo": Stage(training),
            "score-td3": Stage(training),
        },
    )
