"""What the peers' scripts take, play and print. Imports nothing of asyncrl."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Act = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]
"""A batch of observations -> the greedy actions, as the environment takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One training, as it was asked for."""

    env: str
    env_steps: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What came out of it."""

    act: Act
    env_steps: int
    wall_s: float
    """Of training alone: without imports, compilation and construction."""

    version: str
    settings: Mapping[str, Any]
    """As plain values."""


def main(description: str | None, trainings: Mapping[str, Callable[[Asked], Trained]]) -> None:
    """Train what the command line names, play the episodes of the final score, and print it."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("algorithm", choices=sorted(trainings))
    parser.add_argument("--env", required=True)
    parser.add_argument("--env-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    parser.add_argument("--first-episode", type=int, required=True, help="its seed")
    args = parser.parse_args()
    asked = Asked(env=args.env, env_steps=args.env_steps, seed=args.seed)
    trained = trainings[args.algorithm](asked)
    returns = _play(trained.act, args.env, args.episodes, args.first_episode)
    printed = {
        "score": float(returns.mean()),
        "score_std": float(returns.std()),
        "wall_s": trained.wall_s,
        "env_steps": trained.env_steps,
        "details": {"version": trained.version, "settings": dict(trained.settings)},
    }
    print(json.dumps(printed), flush=True)


def _play(act: Act, env_id: str, episodes: int, first: int) -> npt.NDArray[np.float64]:
    envs = [gymnasium.make(env_id) for _ in range(episodes)]
    obs = [env.reset(seed=first + i)[0] for i, env in enumerate(envs)]
    returns = np.zeros(episodes)
    running = [*range(episodes)]
    while running:
        actions = act(np.stack([obs[i] for i in running]).astype(np.float32, copy=False))
        for i, action in zip(tuple(running), actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
    return returns
