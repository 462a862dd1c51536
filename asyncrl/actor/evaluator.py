"""Scores a policy on separate environments. Does not know who trains it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from asyncrl.core.agent import Policy, acted, evaluation_mode, forget
from asyncrl.core.declared import Count, check_declared
from asyncrl.core.env import SUCCESS, BatchEnv
from asyncrl.core.env_checks import checked
from asyncrl.core.evaluator import Evaluation

logger = logging.getLogger(__name__)

_LONG = 10_000
"""Steps without the end of an episode after which an evaluation warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEvaluatorConfig:
    """How `EpisodeEvaluator` plays."""

    episodes: Count = 10
    """Episodes per evaluation; the score is their mean return. Every evaluation plays the same
    ones."""

    max_episode_steps: Count = 100_000
    """Step limit of one evaluation episode, so that an evaluation of an endless environment ends.
    What follows counts as the next episode."""

    stochastic: bool = False
    """Sample actions or explore, as in training. Off takes the best action. Needs an evaluation in
    its own process: otherwise it would change the state of the policy in training."""

    def __post_init__(self) -> None:
        check_declared(self, "evaluate.play")


class EpisodeEvaluator:
    """Mean return of a fixed set of episodes.

    Environment i of the batch plays episodes i, i + B, i + 2B, ... from a fixed seed, so short
    episodes do not count more often than long ones.

    Each step is checked as in an actor. A step that violates the spec raises `EnvironmentFault`: a
    policy still acts on a NaN observation, and its score would look like any other.
    """

    def __init__(self, env: BatchEnv, config: EpisodeEvaluatorConfig, seed: int) -> None:
        self._env = checked(env)
        self._config = config
        self._seed = seed
        self.stochastic = config.stochastic
        """Whether the policy acts as in training."""
        self._warned = False

    def evaluate(self, policy: Policy) -> Evaluation:
        """Play the episodes; without exploration, unless `stochastic` is set."""
        with evaluation_mode(policy):
            policy.train(self.stochastic)
            returns, lengths, infos = self._play(policy)
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

    def _play(self, policy: Policy) -> tuple[list[float], list[int], list[dict[str, float]]]:
        """Return the return, the length and the infos' numbers of each episode."""
        env, wanted = self._env, self._config.episodes
        quota = np.full(env.n_envs, wanted // env.n_envs)
        quota[: wanted % env.n_envs] += 1
        total, steps = np.zeros(env.n_envs), np.zeros(env.n_envs, np.int64)
        returns: list[float] = []
        lengths: list[int] = []
        infos: list[dict[str, float]] = []
        obs = env.reset(self._seed)
        forget(policy, np.ones(env.n_envs, np.bool_))
        while quota.any():
            out = env.step(acted(policy, obs).action)
            obs = out.obs
            forget(policy, out.begins)
            stepped = 1 if out.stepped is None else out.stepped
            reward, over = out.counted
            total += reward * stepped
            steps += stepped
            ended = over | (steps >= self._config.max_episode_steps)
            for i in np.flatnonzero(ended):
                if quota[i]:
                    quota[i] -= 1
                    returns.append(float(total[i]))
                    lengths.append(int(steps[i]))
                    info = {name: float(row[i]) for name, row in (out.info or {}).items()}
                    infos.append({name: x for name, x in info.items() if not np.isnan(x)})
            total[ended] = 0.0
            steps[ended] = 0
            if not (self._warned or returns) and steps.max() >= _LONG:
                self._warned = True
                logger.warning(
                    "no evaluation episode has ended after %d steps; add a time limit to the "
                    "environment, or lower evaluate.play.max_episode_steps, which is %d",
                    _LONG,
                    self._config.max_episode_steps,
                )
        return returns, lengths, infos
