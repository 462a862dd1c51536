"""Stable-Baselines3's PPO, trained until a score: prints its curve as one JSON object.

    .peers/sb3/bin/python -m benchmarks.peers.sb3_to_score '{"env": "HalfCheetah-v5", ...}'

The time in which it is evaluated does not count. It has one process, whose vector of environments
is the fastest on two cores for environments that are cheap.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class Curve(BaseCallback):  # type: ignore[misc]  # untyped here
    """Plays episodes now and then, and ends the run at the bar or at a limit of seconds."""

    def __init__(self, asked: dict[str, Any], vector: VecNormalize) -> None:
        super().__init__()
        self.asked, self.vector = asked, vector
        self.curve: list[tuple[int, float, float]] = []
        self.begun, self.away_s, self.last_s = time.perf_counter(), 0.0, 0.0

    def seconds(self) -> float:
        """Return the seconds of the run without evaluations."""
        return time.perf_counter() - self.begun - self.away_s

    def _on_rollout_end(self) -> None:
        now_s = self.seconds()
        if now_s - self.last_s < self.asked["evaluate_every_s"]:
            return
        self.last_s, left = now_s, time.perf_counter()
        self.curve.append((self.num_timesteps, round(now_s, 2), self._score()))
        self.away_s += time.perf_counter() - left

    def _score(self) -> float:
        episodes, returns = self.asked["episodes"], []
        env = gymnasium.make(self.asked["env"])
        for i in range(episodes):
            obs, _ = env.reset(seed=1_000_000 + i)
            total, over = 0.0, False
            while not over:
                seen = self.vector.normalize_obs(obs[None])
                action, _ = self.model.predict(seen, deterministic=True)
                obs, reward, terminated, truncated, _ = env.step(action[0])
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        env.close()
        return round(float(np.mean(returns)), 2)

    def _on_step(self) -> bool:
        reached = bool(self.curve) and self.curve[-1][2] >= self.asked["bar"]
        return not reached and self.seconds() < self.asked["max_s"]


def main() -> None:
    """Train, and print what came out."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    make = [lambda: gymnasium.make(asked["env"])] * asked["n_envs"]
    vector = VecNormalize(
        DummyVecEnv(make),
        norm_obs=asked["norm_obs"],
        norm_reward=asked["norm_reward"],
        gamma=asked["ppo"]["gamma"],
    )
    model = PPO("MlpPolicy", vector, seed=asked["seed"], device="cpu", **asked["ppo"])
    curve = Curve(asked, vector)
    model.learn(10**9, callback=curve)
    points = curve.curve or [(0, 0.0, float("-inf"))]
    print(
        json.dumps(
            {
                "curve": points,
                "reached": points[-1][2] >= asked["bar"],
                "wall_s": points[-1][1],
                "env_steps": points[-1][0],
                "version": stable_baselines3.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
