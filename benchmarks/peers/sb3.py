"""Stable-Baselines3: PPO's rollouts, SAC and DQN.

It has no prioritized replay.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import (
    BaseCallback,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
)

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    REPLAY_ROWS,
    SIZES,
    Request,
    Sizes,
    make_env,
    make_rows,
    measure_once,
    rate,
    report,
)
from benchmarks.peers.race import GOALS, Race

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"processes": False, "envs": 64, "threads": 1},
    CHEETAH: {"processes": True, "envs": 8, "threads": 1},
    ATARI: {"processes": True, "envs": 8, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"processes": False, "envs": 64, "threads": 1},
    CHEETAH: {"processes": True, "envs": 8, "threads": 1},
    ATARI: {"processes": True, "envs": 8, "threads": 1},
}
"""Fastest on two cores of those tried: 2 to 64 environments, in one process or in one each."""

# The tuned settings of https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/{dqn,sac}.yml. On
# Pendulum they are the library's defaults (256x256, batches of 256, an update a step) but for the
# learning rate. DQN's small batches are slower with more than one thread.
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
}
DQN_ENV_STEPS = 50_000
"""Of which exploration decays over a part."""

SAC_SETTINGS: dict[str, Any] = {"learning_rate": 1e-3}
SAC_THREADS = 2

PIXEL_POLICY: dict[str, Any] = {
    "features_extractor_kwargs": {"features_dim": 64},
    "net_arch": {"pi": [64], "vf": [64]},
}
"""64x64 behind the convolutions, which policy and value share."""

N_STEPS = 128
WARM_UP_ROLLOUTS = 2
CHUNK_OPT_STEPS = 50
FOREVER = 2**40


class RolloutTimer(BaseCallback):  # type: ignore[misc]  # untyped where this is checked
    """Times each rollout, and ends training once enough of them were timed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.rollouts_s: list[float] = []
        self._left_s = seconds
        self._warm_up = WARM_UP_ROLLOUTS

    def _on_rollout_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return self._left_s > 0

    def _on_rollout_end(self) -> None:
        elapsed = time.perf_counter() - self._began
        if self._warm_up:
            self._warm_up -= 1
            return
        self.rollouts_s.append(elapsed)
        self._left_s -= elapsed


class ShapesOnly(gymnasium.Env[Any, Any]):
    """Says how large observations and actions are; nobody steps it."""

    def __init__(self, sizes: Sizes, *, discrete: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (sizes.obs,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (sizes.actions,), np.float32)
        if discrete:
            self.action_space = gymnasium.spaces.Discrete(sizes.actions)


def make_vec_env(env_id: str, settings: dict[str, Any]) -> Any:  # noqa: ANN401  # untyped here
    """Return environments without `Monitor`, which nobody reads here."""
    vec_env = SubprocVecEnv if settings["processes"] else DummyVecEnv
    return vec_env([partial(make_env, env_id)] * settings["envs"])


def sampling(asked: Request) -> None:
    """Collect PPO's rollouts; what it learns between them is short and not counted."""
    settings = {**SAMPLING[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    n = N_STEPS * settings["envs"]
    atari = asked.env == ATARI
    model = PPO(
        "CnnPolicy" if atari else "MlpPolicy",
        make_vec_env(asked.env, settings),
        n_steps=N_STEPS,
        batch_size=64 if atari else n,
        n_epochs=1,
        policy_kwargs=PIXEL_POLICY if atari else {"net_arch": [64, 64]},
        seed=asked.seed,
        device="cpu",
    )
    if atari:
        model.train = lambda: None
    timer = RolloutTimer(asked.seconds)
    model.learn(total_timesteps=FOREVER, callback=timer)
    model.env.close()
    _report(asked, n * len(timer.rollouts_s) / sum(timer.rollouts_s), settings)


def env(asked: Request) -> None:
    """Step environments with actions drawn beforehand."""
    settings = {**ENV[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    envs = make_vec_env(asked.env, settings)
    envs.action_space.seed(asked.seed)
    actions = [
        np.array([envs.action_space.sample() for _ in range(settings["envs"])]) for _ in range(100)
    ]

    def turn() -> int:
        for action in actions:
            envs.step(action)
        return len(actions) * int(settings["envs"])

    envs.reset()
    value = rate(turn, asked.seconds)
    envs.close()
    _report(asked, value, settings)


def updates(asked: Request) -> None:
    """Optimise from a full replay buffer."""
    sizes, discrete = SIZES[asked.stage], asked.stage == "updates-dqn"
    settings = {"threads": asked.threads or 1, "rows": REPLAY_ROWS, **asked.settings}
    torch.set_num_threads(settings["threads"])
    model = (DQN if discrete else SAC)(
        "MlpPolicy",
        ShapesOnly(sizes, discrete=discrete),
        batch_size=sizes.batch,
        buffer_size=settings["rows"],
        policy_kwargs={"net_arch": list(sizes.hidden)},
        seed=asked.seed,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    rows = make_rows(sizes, settings["rows"], discrete=discrete)
    buffer = model.replay_buffer
    buffer.observations[:, 0] = rows["obs"]
    buffer.next_observations[:, 0] = rows["next_obs"]
    buffer.actions[:, 0] = rows["action"].reshape(settings["rows"], -1)
    buffer.rewards[:, 0] = rows["reward"]
    buffer.dones[:, 0] = rows["terminated"]
    buffer.full = True

    def turn() -> int:
        model.train(gradient_steps=CHUNK_OPT_STEPS, batch_size=sizes.batch)
        return CHUNK_OPT_STEPS

    _report(asked, rate(turn, asked.seconds), settings)


def score(asked: Request) -> None:
    """Train with the zoo's tuned settings until the score is reached."""
    goal, discrete = GOALS[asked.stage], asked.stage == "score-dqn"
    settings = {**(DQN_SETTINGS if discrete else SAC_SETTINGS), **asked.settings}
    threads = asked.threads or (1 if discrete else SAC_THREADS)
    torch.set_num_threads(threads)
    algorithm = DQN if discrete else SAC
    model = algorithm("MlpPolicy", goal.env, seed=asked.seed, device="cpu", **settings)
    race = Race(goal, asked.seconds)

    def act(obs: Any) -> Any:  # noqa: ANN401  # untyped where this is checked
        return model.predict(obs, deterministic=True)[0]

    def go_on(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        return not race.over(act, model._n_updates)  # noqa: SLF001  # it has no other counter

    model.learn(total_timesteps=DQN_ENV_STEPS if discrete else FOREVER, callback=go_on)
    report(
        asked,
        peer="sb3",
        version=stable_baselines3.__version__,
        value=race.seconds,
        settings={**settings, "threads": threads},
        note=race.note(),
        details=race.details(model.num_timesteps, model._n_updates),  # noqa: SLF001
    )


def _report(asked: Request, value: float, settings: dict[str, Any]) -> None:
    version = stable_baselines3.__version__
    report(asked, peer="sb3", version=version, value=value, settings=settings)


STAGES = {
    "sampling": sampling,
    "env": env,
    "updates-sac": updates,
    "updates-dqn": updates,
    "score-dqn": score,
    "score-sac": score,
}


if __name__ == "__main__":
    measure_once(__doc__, STAGES)
