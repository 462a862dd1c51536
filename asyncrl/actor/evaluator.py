"""Scores a policy on separate environments. Does not know who trains it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asyncrl.core.agent import Policy, acted, evaluation_mode, forget
from asyncrl.core.declared import Count, check_declared
from asyncrl.core.env import SUCCESS, BatchEnv
from asyncrl.core.env_checks import checked
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.types import BoolArray

logger = logging.getLogger(__name__)

_LONG = 10_000
"""Steps without the end of an episode after which an evaluation warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEvaluatorConfig:
    """How `EpisodeEvaluator` plays."""

    episodes: Count = 10
    """Episodes per evaluation; the score is their mean return. Every evaluation plays the same
    ones: episode k begins alike for every policy."""

    max_episode_steps: Count = 100_000
    """Step limit of one evaluation episode, so that an evaluation of an endless environment
    ends."""

    stochastic: bool = False
    """Sample actions or explore, as in training; a ladder of exploration is spread over the
    environments of the evaluation. Off takes the best action. Needs an evaluation in its own
    process: otherwise it would change the state of the policy in training."""

    def __post_init__(self) -> None:
        check_declared(self, "evaluate.play")


class _Episode(NamedTuple):
    """An episode that has ended."""

    total: float
    """Sum of its rewards."""

    length: int
    info: Mapping[str, float]


class EpisodeEvaluator:
    """Mean return of a fixed set of episodes.

    A batch of B environments plays them in rounds of B, and all environments are reset before each
    round. Episode k is seeded with `seed + k`, as far as environment i of a batch is seeded with
    `seed + i`. So it begins alike for every policy, whatever happened in the episodes before it,
    and short episodes do not count more often than long ones. Environments whose episode has ended
    rest until all have, if they can.

    Each step is checked as in an actor. A step that violates the spec raises `EnvironmentFault`: a
    policy still acts on a NaN observation, and its score would look like any other.
    """

    def __init__(self, env: BatchEnv, config: EpisodeEvaluatorConfig, seed: int) -> None:
        self._env = checked(env)
        self._config = config
        self._seed = seed
        self.stochastic = config.stochastic
        """Whether the policy acts as in training."""
        self.n_envs = env.n_envs
        """Number of rows with which the policy acts."""
        self._warned = False

    def evaluate(self, policy: Policy) -> Evaluation:
        """Play the episodes; without exploration, unless `stochastic` is set."""
        with evaluation_mode(policy):
            policy.train(self.stochastic)
            played = self._play(policy)
        returns = [episode.total for episode in played]
        lengths = [episode.length for episode in played]
        infos = [episode.info for episode in played]
        score = float(np.mean(returns))
        record = {
            "eval_reward": score,
            "eval/return_min": float(np.min(returns)),
            "eval/return_max": float(np.max(returns)),
            "eval/return_std": float(np.std(returns)),
            "eval/length_mean": float(np.mean(lengths)),
        }
        for name in {name for info in infos for name in info}:
            metric = "eval/success_rate" if name == SUCCESS else f"eval/info/{name}"
            record[metric] = float(np.mean([info[name] for info in infos if name in info]))
        return Evaluation(score, record)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def _play(self, policy: Policy) -> list[_Episode]:
        """Play the episodes, in rounds of one for each environment; return them in their order."""
        played: list[_Episode] = []
        while (left := self._config.episodes - len(played)) > 0:
            wanted = np.arange(self._env.n_envs) < left
            played += self._play_round(policy, self._seed + len(played), wanted)
        return played

    def _play_round(self, policy: Policy, seed: int, wanted: BoolArray) -> list[_Episode]:
        """Reset all environments; return the first episode of each one that is wanted."""
        env = self._env
        total, steps = np.zeros(env.n_envs), 0
        episodes: dict[int, _Episode] = {}
        obs = env.reset(seed)
        forget(policy, np.ones(env.n_envs, np.bool_))
        lengths = np.zeros(env.n_envs, np.int64)
        left = wanted.copy()
        rest = getattr(env, "rest", lambda _: None)
        rest(~left)
        while left.any():
            out = env.step(acted(policy, obs).action)
            obs, steps = out.obs, steps + 1
            forget(policy, out.begins)
            stepped = 1 if out.stepped is None else out.stepped
            reward, over = out.counted
            total += reward * stepped
            lengths += stepped
            ended = left & (over | (lengths >= self._config.max_episode_steps))
            left &= ~ended
            if ended.any():
                rest(~left)
            for i in np.flatnonzero(ended).tolist():
                info = {name: float(row[i]) for name, row in (out.info or {}).items()}
                known = {name: x for name, x in info.items() if not np.isnan(x)}
                episodes[i] = _Episode(float(total[i]), int(lengths[i]), known)
            if steps == _LONG and not (self._warned or episodes):
                self._warn_of_length()
        return [episodes[i] for i in sorted(episodes)]

    def _warn_of_length(self) -> None:
        self._warned = True
        logger.warning(
            "no evaluation episode has ended after %d steps; add a time limit to the "
            "environment, or lower evaluate.play.max_episode_steps, which is %d",
            _LONG,
            self._config.max_episode_steps,
        )
