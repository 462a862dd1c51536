"""How actions other than the best one are tried, for agents that tell the value of each action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.agent import PolicyContext
from asyncrl.agents._checks import check_not_negative, check_positive, check_probability
from asyncrl.recorder import Record
from asyncrl.types import Array

__all__ = ["EpsilonGreedy", "EpsilonLadder", "Exploration", "Explorer", "Softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy:
    """A random action with probability epsilon, the same in all environments."""

    start: float = 1.0
    """Epsilon of the first step, a probability."""

    end: float = 0.05
    """Epsilon after the decay, a probability."""

    decay_env_steps: int = 10_000
    """Environment steps of the whole run over which epsilon falls, linearly; 0 starts at `end`."""

    def __post_init__(self) -> None:
        check_probability("exploration.start", self.start)
        check_probability("exploration.end", self.end)
        check_not_negative("exploration.decay_env_steps", self.decay_env_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonLadder:
    """Ape-X: each of the N environments of all actors keeps an epsilon of its own.

    Environment i has base^(1 + alpha * i / (N - 1)); a single one has `base`.
    """

    base: float = 0.4
    """Epsilon of the environment that explores most, a probability."""

    alpha: float = 7.0
    """How much less the others explore; the last one has base^(1 + alpha)."""

    decay_env_steps: int = 0
    """Environment steps of the whole run over which epsilons fall, linearly, from 1 to theirs."""

    def __post_init__(self) -> None:
        check_probability("exploration.base", self.base)
        check_not_negative("exploration.alpha", self.alpha)
        check_not_negative("exploration.decay_env_steps", self.decay_env_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Actions with probabilities in proportion to exp(Q / temperature)."""

    temperature: float = 1.0
    """In units of Q values, that is, of returns."""

    def __post_init__(self) -> None:
        check_positive("exploration.temperature", self.temperature)


Exploration = EpsilonGreedy | EpsilonLadder | Softmax


class Explorer:
    """Chooses actions for the environments of one policy, given the values of all actions."""

    def __init__(
        self, exploration: Exploration, context: PolicyContext, random: np.random.Generator
    ) -> None:
        self._exploration = exploration
        self._random = random
        self._final_epsilons = _final_epsilons(exploration, context)

    def choose(self, q: Array, env_steps: int) -> Array:
        """Return an action for each row of values (environments, actions)."""
        if isinstance(self._exploration, Softmax):
            # Gumbel's trick: argmax(Q / T + G) is a draw from softmax(Q / T).
            noise = self._random.gumbel(size=q.shape)
            drawn: Array = (q / self._exploration.temperature + noise).argmax(axis=1)
            return drawn
        explores = self._random.random(len(q)) < self.epsilons(env_steps)
        anything = self._random.integers(q.shape[1], size=len(q))
        return np.where(explores, anything, q.argmax(axis=1))

    def epsilons(self, env_steps: int) -> Array:
        """Return each environment's probability of a random action after that many steps."""
        exploration = self._exploration
        if isinstance(exploration, Softmax) or env_steps >= exploration.decay_env_steps:
            return self._final_epsilons
        start = exploration.start if isinstance(exploration, EpsilonGreedy) else 1.0
        return start + env_steps / exploration.decay_env_steps * (self._final_epsilons - start)

    def record(self, env_steps: int) -> Record:
        """Tell how much is explored after that many steps."""
        if isinstance(self._exploration, Softmax):
            return {"exploration_temperature": self._exploration.temperature}
        return {"exploration_rate": float(self.epsilons(env_steps).mean())}


def _final_epsilons(exploration: Exploration, context: PolicyContext) -> Array:
    """Return each environment's probability of a random action once nothing decays any more."""
    match exploration:
        case EpsilonGreedy():
            return np.array([exploration.end])
        case EpsilonLadder():
            # epsilon_i = base^(1 + alpha * i / (N - 1)), counted across all actors
            n = context.n_actors * context.n_envs
            i = context.actor_id * context.n_envs + np.arange(context.n_envs)
            return exploration.base ** (1.0 + exploration.alpha * i / max(1, n - 1))
        case Softmax():
            return np.zeros(1)
