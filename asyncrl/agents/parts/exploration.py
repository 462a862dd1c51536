"""Exploration for agents that know the value of each action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from asyncrl.agents.parts.schedules import Schedule, ShareOverTime, value_at
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import Count, Natural, NotNegative, Within, check_declared
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, BoolArray, IntArray

_FALLING = Schedule.linear(1.0, 0.05, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy:
    """A random action with probability epsilon, the same in all environments."""

    epsilon: ShareOverTime = _FALLING
    """Probability of a random action, or a schedule of it."""

    def __post_init__(self) -> None:
        check_declared(self, "agent.exploration")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonLadder:
    """Ape-X: each of the N environments of all actors has its own constant epsilon.

    Environment i has base^(1 + alpha * i / (N - 1)). A single one has `base`, which is too much for
    it: `EpsilonGreedy`, whose epsilon falls, mostly learns faster there.
    """

    base: ShareOverTime = 0.4
    """Epsilon of the environment that explores most, or a schedule of it."""

    alpha: NotNegative = 7.0
    """Exponent of the ladder; larger values let the other environments explore less. The last one
    has base^(1 + alpha)."""

    decay_env_steps: Natural = 0
    """Environment steps of the whole run over which all epsilons fall linearly from 1 to their
    place on the ladder. 0 disables the decay."""

    duration_env_steps: Count = 1
    """Mean number of steps of one environment for which it takes the same random action, or acts
    greedily. 1 draws a new decision in each step. Where one step changes little, as in MountainCar,
    only longer ones explore."""

    def __post_init__(self) -> None:
        check_declared(self, "agent.exploration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Actions with probabilities in proportion to exp(Q / temperature)."""

    temperature: Annotated[float | Schedule, Within("(0, inf)")] = 1.0
    """Temperature in units of Q values, that is, of returns; or a schedule of it."""

    def __post_init__(self) -> None:
        check_declared(self, "agent.exploration")


FORBIDDEN = -1e9
"""Value or logit of a forbidden action, give or take that of an allowed one. It is finite, so that
0 times its logarithm is 0."""


def random_allowed(outputs: Array, share: Array) -> IntArray:
    """Return an allowed action for each row of outputs, for shares that are uniform in [0, 1)."""
    allowed = outputs > FORBIDDEN / 2
    if allowed.all():
        anything: IntArray = (share * outputs.shape[1]).astype(np.int64)
        return anything
    place = (share * allowed.sum(axis=1)).astype(np.int64)
    # the first action with this number of allowed ones before it
    action: IntArray = (allowed.cumsum(axis=1) > place[:, None]).argmax(axis=1)
    return action


Exploration = EpsilonGreedy | EpsilonLadder | Softmax


class Explorer:
    """Chooses actions for the environments of one policy, given the values of all actions."""

    def __init__(
        self, exploration: Exploration, context: PolicyContext, random: np.random.Generator
    ) -> None:
        self._exploration = exploration
        self._random = random
        self._context = context
        self.spread(context.n_actors)
        self._duration = 1
        if isinstance(exploration, EpsilonLadder):
            self._duration = exploration.duration_env_steps
        # What each environment does until its next decision; `anything` is a share of its actions.
        self._explores: BoolArray = np.zeros(context.n_envs, np.bool_)
        self._anything: Array = np.zeros(context.n_envs)
        self._decides: BoolArray = np.ones(context.n_envs, np.bool_)

    def spread(self, n_actors: int) -> None:
        """Take the places of these environments among those of all actors."""
        n, n_envs = n_actors * self._context.n_envs, self._context.n_envs
        i = self._context.actor_id * n_envs + np.arange(n_envs)
        self._rungs: Array = np.minimum(i / max(1, n - 1), 1.0)
        # Epsilons of a ladder whose highest one this is.
        self._highest, self._ladder = -1.0, self._rungs

    def choose(self, q: Array, env_steps: int) -> Array:
        """Return an action for each row of values (environments, actions)."""
        if isinstance(self._exploration, Softmax):
            # Gumbel-max trick: argmax(Q / T + G) is a sample from softmax(Q / T).
            noise = self._random.gumbel(size=q.shape)
            temperature = value_at(self._exploration.temperature, env_steps)
            drawn: Array = (q / temperature + noise).argmax(axis=1)
            return drawn
        number, epsilon = self._random.random(len(q)), self.epsilons(env_steps)
        explores = number < epsilon
        best: Array = q.argmax(axis=1)
        if self._duration == 1 and not np.count_nonzero(explores):  # mostly, with one environment
            return best
        # A number that is uniform in [0, 1) is uniform in [0, epsilon) where it is below epsilon.
        anything = number / np.maximum(epsilon, number)
        if self._duration > 1:
            renewed = self._decides | (self._random.random(len(q)) * self._duration < 1.0)
            explores = self._explores = np.where(renewed, explores, self._explores)
            anything = self._anything = np.where(renewed, anything, self._anything)
            self._decides = np.zeros(len(q), np.bool_)
        action: Array = np.where(explores, random_allowed(q, anything), best)
        return action

    def forget(self, where: BoolArray) -> None:
        """Draw a new decision for these environments: an episode begins there."""
        if self._duration > 1:  # otherwise each step draws one
            self._decides = self._decides | where

    def epsilons(self, env_steps: int) -> Array:
        """Return each environment's probability of a random action after that many steps."""
        match self._exploration:
            case EpsilonGreedy(epsilon=epsilon):
                return np.array([value_at(epsilon, env_steps)])
            case EpsilonLadder(base=base, alpha=alpha, decay_env_steps=decay):
                highest = value_at(base, env_steps)
                if highest != self._highest:
                    # Rung i of N: base^(1 + alpha * i / (N - 1)).
                    self._highest, self._ladder = highest, highest ** (1.0 + alpha * self._rungs)
                final = self._ladder
                return final if env_steps >= decay else 1.0 + env_steps / decay * (final - 1.0)
            case Softmax():
                return np.zeros(1)

    def record(self, env_steps: int) -> Record:
        """Return the amount of exploration after that many steps."""
        match self._exploration:
            case Softmax(temperature=temperature):
                return {"exploration_temperature": value_at(temperature, env_steps)}
            case EpsilonGreedy(epsilon=epsilon):
                return {"exploration_rate": value_at(epsilon, env_steps)}
            case EpsilonLadder():
                return {"exploration_rate": float(self.epsilons(env_steps).mean())}
