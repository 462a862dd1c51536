"""What the Stable-Baselines3 scripts share: threads, versions, training until a score is reached.

Imports nothing of asyncrl: it runs in a virtual environment that does not have it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3  # type: ignore[import-not-found]  # in the peers' environment alone
import torch
from stable_baselines3.common.env_util import (  # type: ignore[import-not-found]
    make_vec_env,
)
from stable_baselines3.common.evaluation import (  # type: ignore[import-not-found]
    evaluate_policy,
)

__all__ = ["Goal", "begin", "parser", "report", "train_until"]

EPISODES_SEED = 771_763_029
"""Episode i starts from this plus i: the very episodes that asyncrl evaluates on by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The mean return of greedy episodes at which training stops."""

    env: str
    score: float
    episodes: int = 10
    interval_env_steps: int = 500
    """Between two evaluations."""


def parser(description: str | None, *, threads: int) -> argparse.ArgumentParser:
    """Return a parser of what all scripts take.

    Args:
        description: The first line of it is shown.
        threads: With how many the script is fastest on two cores; 0 leaves it to torch.
    """
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--threads", type=int, default=threads, help="of torch; 0: its own choice")
    return made


def begin(threads: int) -> None:
    """Set the number of threads before torch does any work."""
    if threads:
        torch.set_num_threads(threads)


def report(**values: object) -> None:
    """Print one JSON line: the values, and what they depend on."""
    versions = {
        "stable-baselines3": stable_baselines3.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }
    print(json.dumps({**values, "threads": torch.get_num_threads(), "versions": versions}))


def train_until(model: Any, goal: Goal, max_env_steps: int, seed: int) -> dict[str, object]:  # noqa: ANN401  # SB3's are untyped here
    """Train to the goal and tell how long that took, with the evaluations' time and without.

    Like the evaluator of asyncrl, plays the same episodes each time, all of them at once.
    """
    env = make_vec_env(goal.env, n_envs=goal.episodes, seed=EPISODES_SEED)
    scores: list[float] = []
    spent_s = 0.0
    reached_s: float | None = None
    began = time.perf_counter()

    def evaluate(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        nonlocal spent_s, reached_s
        if model.num_timesteps % goal.interval_env_steps:
            return True
        paused = time.perf_counter()
        env.seed(EPISODES_SEED)
        score, _ = evaluate_policy(model, env, n_eval_episodes=goal.episodes)
        scores.append(round(float(score), 2))
        now = time.perf_counter()
        spent_s += now - paused
        if score >= goal.score:
            reached_s = now - began
        return reached_s is None

    model.learn(total_timesteps=max_env_steps, callback=evaluate)
    env.close()
    return {
        "env": goal.env,
        "goal": goal.score,
        "seed": seed,
        "reached": reached_s is not None,
        "seconds": reached_s,
        "seconds_without_evaluation": None if reached_s is None else reached_s - spent_s,
        "evaluation_seconds": spent_s,
        "env_steps": model.num_timesteps,
        "scores": scores,
    }
