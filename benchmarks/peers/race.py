"""The result of a training: time to a score, or the score after a number of environment steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from benchmarks.peers.interface import CARTPOLE, PENDULUM, Act, Request, Training

EPISODES_SEED = 771_763_029
"""Episode i has this seed plus i: the episodes of asyncrl's default evaluations."""

FINAL_SEED = 1_000_003
"""The first of the episodes of a final score, which no training has seen."""

FINAL_EPISODES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The mean return of greedy episodes at which training stops."""

    env: str
    score: float
    episodes: int = 10
    interval_opt_steps: int = 500
    """Seconds between two evaluations."""


GOALS: Mapping[str, Goal] = {
    "score-dqn": Goal(env=CARTPOLE, score=475.0),
    "score-sac": Goal(env=PENDULUM, score=-200.0),
}


class Race:
    """Runs from its construction; stops during evaluations, when the peer does not train."""

    def __init__(self, goal: Goal, act: Act, max_s: float) -> None:
        self.scores: list[float] = []
        self.reached_s: float | None = None
        self.evaluations_s = 0.0
        self.steps = 0, 0
        self._goal, self._act, self._max_s = goal, act, max_s
        self._envs = [gymnasium.make(goal.env) for _ in range(goal.episodes)]
        self._next_opt_steps = goal.interval_opt_steps
        self._began = time.perf_counter()

    def over(self, env_steps: int, opt_steps: int) -> bool:
        """Evaluate if it is time to, and return whether the race has ended."""
        self.steps = env_steps, opt_steps
        now = time.perf_counter()
        if opt_steps >= self._next_opt_steps:
            self._next_opt_steps = opt_steps + self._goal.interval_opt_steps
            score = float(returns_of(self._act, self._envs, EPISODES_SEED).mean())
            self.scores.append(round(score, 2))
            before, now = now, time.perf_counter()
            self.evaluations_s += now - before
            if score >= self._goal.score:
                self.reached_s = now - self._began
        return self.reached_s is not None or now - self._began - self.evaluations_s > self._max_s


def race_to_score(asked: Request, training: Training) -> dict[str, Any]:
    """Train until the score is reached; the value is the time without evaluations."""
    goal = GOALS[asked.stage]
    race = Race(goal, training.act, asked.seconds)
    training.run(race.over, 0)
    env_steps, opt_steps = race.steps
    value, note = None, ""
    if race.reached_s is None:
        best = max(race.scores, default=float("nan"))
        note = f"not at {goal.score:g} within {asked.seconds:g} s; the best mean was {best:g}"
    else:
        value = race.reached_s - race.evaluations_s
    details = {
        "seconds_with_evaluations": race.reached_s,
        "env_steps": env_steps,
        "opt_steps": opt_steps,
        "scores": race.scores,
    }
    return {"value": value, "note": note, "details": details}


def train_for(asked: Request, training: Training) -> dict[str, Any]:
    """Train for this number of environment steps, and score the model on other episodes."""
    steps = 0, 0

    def never(env_steps: int, opt_steps: int) -> bool:
        nonlocal steps
        steps = env_steps, opt_steps
        return False

    began = time.perf_counter()
    training.run(never, asked.env_steps)
    wall_s = time.perf_counter() - began
    envs = [gymnasium.make(asked.env) for _ in range(FINAL_EPISODES)]
    returns = returns_of(training.act, envs, FINAL_SEED)
    return {
        "score": float(returns.mean()),
        "score_std": float(returns.std()),
        "wall_s": wall_s,
        "env_steps": steps[0],
        "opt_steps": steps[1],
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
