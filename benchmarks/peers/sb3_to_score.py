"""Stable-Baselines3, trained until a score, or timed with several settings: prints one JSON object.

    .peers/sb3/bin/python -m benchmarks.peers.sb3_to_score '{"env": "HalfCheetah-v5", ...}'

The time in which it is evaluated does not count. With a list of `candidates`, it measures how many
environment steps per second each of them trains on.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

ALGORITHMS = {"ppo": PPO, "dqn": DQN, "sac": SAC}
FOREVER = 2**40
_MIN_APART_S, _SHARE_APART = 0.5, 0.05
"""Seconds between evaluations, and the same as a share of the run."""


def make_env(env: str, *, evaluates: bool) -> gymnasium.Env[Any, Any]:
    """Make an environment by its id, or by the name of a factory.

    Atari's have the preprocessing of asyncrl: sticky actions, whole games as evaluations.
    """
    made: gymnasium.Env[Any, Any]
    if env.startswith("ALE/"):
        importlib.import_module("ale_py")
        game = gymnasium.make(env, frameskip=1)
        made = AtariWrapper(game, 30, 4, 84, False, not evaluates)
    else:
        module, _, name = env.partition(":")
        factory = getattr(importlib.import_module(module), name, None) if name else None
        made = factory() if factory else gymnasium.make(env)
    return made


def make_envs(asked: dict[str, Any], n_envs: int, *, evaluates: bool = False) -> VecEnv:
    """Make a vector of environments, without what normalises them."""
    several = asked.get("vector") == "subproc" and not evaluates
    makes = [partial(make_env, asked["env"], evaluates=evaluates)] * n_envs
    envs: VecEnv = (SubprocVecEnv if several else DummyVecEnv)(makes)
    return VecTransposeImage(VecFrameStack(envs, 4)) if asked["env"].startswith("ALE/") else envs


def make_model(asked: dict[str, Any]) -> Any:  # noqa: ANN401  # untyped here
    """Make a model and its environments."""
    torch.set_num_threads(asked["threads"])
    settings = dict(asked["settings"])
    envs = make_envs(asked, asked["n_envs"])
    if any(asked["normalize"].values()):
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99), **asked["normalize"])
    policy = dict(settings.pop("policy_kwargs", {}))
    policy["normalize_images"] = not asked["normalize"]["norm_obs"]  # bytes, unless normalised
    if activation := policy.get("activation_fn"):
        policy["activation_fn"] = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[activation]
    if "features_extractor_class" in policy:
        policy["features_extractor_class"] = Small
    for name, value in settings.items():
        if isinstance(value, list):  # of (environment steps, value)
            settings[name] = partial(_at, value, asked["total_steps"])
    if asked["hindsight"] is not None:
        settings["replay_buffer_class"] = HerReplayBuffer
        settings["replay_buffer_kwargs"] = asked["hindsight"]
    return ALGORITHMS[asked["algorithm"]](
        asked["policy"], envs, policy_kwargs=policy, seed=asked["seed"], device="cpu", **settings
    )


class Small(BaseFeaturesExtractor):  # type: ignore[misc]  # untyped here
    """The network of asyncrl's preset `ppo-atari`."""

    def __init__(self, observation_space: Any, features_dim: int) -> None:  # noqa: ANN401
        super().__init__(observation_space, features_dim)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(4, 16, kernel_size=8, stride=4),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, kernel_size=4, stride=2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(2592, features_dim),
            torch.nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return features."""
        features: torch.Tensor = self.layers(observations)
        return features


def _at(points: list[tuple[int, float]], total_steps: int, left: float) -> float:
    return float(np.interp((1.0 - left) * total_steps, *np.array(points).T))


class Curve(BaseCallback):  # type: ignore[misc]  # untyped here
    """Plays episodes now and then, and ends the run at the bar or at a limit of seconds."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__()
        self.asked = asked
        self.envs = make_envs(asked, asked["episodes"], evaluates=True)
        self.curve: list[tuple[int, float, float]] = []
        self.begun, self.away_s, self.away_cpu_s = time.perf_counter(), 0.0, 0.0
        self.next_s = 0.0

    def seconds(self) -> float:
        """Return the seconds of the run without evaluations."""
        return time.perf_counter() - self.begun - self.away_s

    def look(self) -> None:
        """Evaluate the model."""
        now_s, left, cpu_s = self.seconds(), time.perf_counter(), time.process_time()
        self.curve.append((self.num_timesteps, round(now_s, 2), self._score()))
        took_s = time.perf_counter() - left
        self.away_s += took_s
        self.away_cpu_s += time.process_time() - cpu_s
        self.next_s = now_s + max(_MIN_APART_S, _SHARE_APART * now_s, took_s)

    def reached(self) -> bool:
        """Whether the last model is at the bar; the first one has not learned anything."""
        return bool(self.curve[1:]) and self.curve[-1][2] >= self.asked["bar"]

    def _on_rollout_start(self) -> None:
        if not self.reached() and self.seconds() >= self.next_s:
            self.look()

    def _score(self) -> float:
        """Return the mean return of one episode of each environment."""
        self.envs.seed(self.asked["eval_seed"])
        normalize, obs = self.model.get_vec_normalize_env(), self.envs.reset()
        returns, playing = np.zeros(self.envs.num_envs), np.ones(self.envs.num_envs, np.bool_)
        while playing.any():
            seen = normalize.normalize_obs(obs) if normalize else obs
            obs, rewards, dones, _ = self.envs.step(self.model.predict(seen, deterministic=True)[0])
            returns += rewards * playing
            playing &= ~dones
        return round(float(returns.mean()), 2)

    def _on_step(self) -> bool:
        return not self.reached() and self.seconds() < self.asked["max_s"]


class Speed(BaseCallback):  # type: ignore[misc]  # untyped here
    """Counts environment steps per second of whole turns of acting and learning."""

    def __init__(self, measured_s: float, limit_s: float) -> None:
        super().__init__()
        self.measured_s, self.limit_s = measured_s, limit_s
        self.turns, self.since = 0, (0, 0.0)
        self.begun = time.perf_counter()
        self.rate: float | None = None

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        learns = self.num_timesteps > getattr(self.model, "learning_starts", 0)
        self.turns += learns
        if self.turns == 2:
            self.since = self.num_timesteps, now
        elif self.turns > 2:
            self.rate = (self.num_timesteps - self.since[0]) / (now - self.since[1])

    def _on_step(self) -> bool:
        now = time.perf_counter()
        measured = self.rate is not None and now - self.since[1] > self.measured_s
        return not measured and now - self.begun < self.limit_s


def train(asked: dict[str, Any]) -> dict[str, Any]:
    """Train until the bar, and return what came out."""
    model = make_model(asked)
    curve = Curve(asked)
    model.learn(asked["total_steps"], callback=curve)
    if not curve.reached():
        curve.look()
    last = curve.curve[-1]
    model.env.close()
    return {
        "curve": curve.curve,
        "reached": curve.reached(),
        "wall_s": last[1],
        "env_steps": last[0],
        "away_cpu_s": round(curve.away_cpu_s, 2),
        "version": stable_baselines3.__version__,
    }


def rates(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the speed of each of several settings."""
    found = []
    for candidate in asked["candidates"]:
        model = make_model(candidate)
        speed = Speed(asked["measured_s"], asked["limit_s"])
        model.learn(FOREVER, callback=speed)
        model.env.close()
        found.append(speed.rate)
    return {"rates": found}


def main() -> None:
    """Do what the first argument asks for."""
    asked = json.loads(sys.argv[1])
    print(json.dumps(rates(asked) if "candidates" in asked else train(asked)))


if __name__ == "__main__":
    main()
