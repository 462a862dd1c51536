"""A race to a score: when a peer is evaluated, on which episodes, and what its time is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from benchmarks.peers.interface import CARTPOLE, PENDULUM

EPISODES_SEED = 771_763_029
"""Episode i starts from this plus i: the very episodes that asyncrl evaluates on by default."""

Act = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]
"""A batch of observations -> the greedy actions, as the environment takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The mean return of greedy episodes at which training stops."""

    env: str
    score: float
    episodes: int = 10
    interval_opt_steps: int = 500
    """Between two evaluations."""


GOALS: Mapping[str, Goal] = {
    "score-dqn": Goal(env=CARTPOLE, score=475.0),
    "score-sac": Goal(env=PENDULUM, score=-200.0),
}


class Race:
    """Counts from its construction; evaluations, during which a peer does not train, are apart."""

    def __init__(self, goal: Goal, max_s: float) -> None:
        self.scores: list[float] = []
        self._goal = goal
        self._max_s = max_s
        self._envs = [gymnasium.make(goal.env) for _ in range(goal.episodes)]
        self._evaluations_s = 0.0
        self._next_opt_steps = goal.interval_opt_steps
        self._reached_s: float | None = None
        self._began = time.perf_counter()

    def over(self, act: Act, opt_steps: int) -> bool:
        """Evaluate if it is time to, and return whether the race has ended."""
        now = time.perf_counter()
        if opt_steps >= self._next_opt_steps:
            self._next_opt_steps = opt_steps + self._goal.interval_opt_steps
            score = self._mean_return(act)
            self.scores.append(round(score, 2))
            before, now = now, time.perf_counter()
            self._evaluations_s += now - before
            if score >= self._goal.score:
                self._reached_s = now - self._began
        return self._reached_s is not None or now - self._began - self._evaluations_s > self._max_s

    @property
    def seconds(self) -> float | None:
        """Until the score was reached, evaluations left out; None if it was not."""
        return None if self._reached_s is None else self._reached_s - self._evaluations_s

    def details(self, env_steps: int, opt_steps: int) -> dict[str, Any]:
        """Return what else there is to know."""
        return {
            "seconds_with_evaluations": self._reached_s,
            "env_steps": env_steps,
            "opt_steps": opt_steps,
            "scores": self.scores,
        }

    def note(self) -> str:
        """Say why there is no time, if there is none."""
        if self._reached_s is not None:
            return ""
        best = max(self.scores, default=float("nan"))
        return f"not at {self._goal.score:g} within {self._max_s:g} s; the best mean was {best:g}"

    def _mean_return(self, act: Act) -> float:
        obs = [env.reset(seed=EPISODES_SEED + i)[0] for i, env in enumerate(self._envs)]
        returns = np.zeros(len(self._envs))
        running = list(range(len(self._envs)))
        while running:
            actions = act(np.stack([obs[i] for i in running]).astype(np.float32, copy=False))
            for i, action in zip(tuple(running), actions, strict=True):
                obs[i], reward, terminated, truncated, _ = self._envs[i].step(action)
                returns[i] += reward
                if terminated or truncated:
                    running.remove(i)
        return float(returns.mean())
