"""The score of a training after a number of environment steps."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from benchmarks.peers.interface import Act, Request, Training

FINAL_SEED = 1_000_003
"""The first of the episodes of a final score, which no training has seen."""

FINAL_EPISODES = 20


def train_for(asked: Request, training: Training) -> dict[str, Any]:
    """Train for this number of environment steps, and score the model on other episodes."""
    began = time.perf_counter()
    opt_steps = training.run(asked.env_steps)
    wall_s = time.perf_counter() - began
    envs = [gymnasium.make(asked.env) for _ in range(FINAL_EPISODES)]
    returns = returns_of(training.act, envs, FINAL_SEED)
    return {
        "score": float(returns.mean()),
        "score_std": float(returns.std()),
        "wall_s": wall_s,
        "env_steps": asked.env_steps,
        "opt_steps": opt_steps,
    }


def returns_of(act: Act, envs: list[Any], first_seed: int) -> npt.NDArray[np.float64]:
    """Play one episode in each environment; return their returns."""
    obs = [env.reset(seed=first_seed + i)[0] for i, env in enumerate(envs)]
    returns = np.zeros(len(envs))
    running = [*range(len(envs))]
    while running:
        actions = act(np.stack([obs[i] for i in running]).astype(np.float32, copy=False))
        for i, action in zip(tuple(running), actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += reward
            if terminated or truncated:
                running.remove(i)
    return returns
