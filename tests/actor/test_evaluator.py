"""A score is the mean return of fixed episodes, each played to its end with exploration off."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.core.agent import Act
from asyncrl.core.env import BatchEnv, EnvStep
from asyncrl.core.types import Array
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import Plan, TellingEnv, telling_makers
from tests.support.fakes import ConstantAgent, CountingBatch, CountingMemory


def evaluator(
    env: BatchEnv, episodes: int = 4, *, seed: int = 0, max_episode_steps: int = 100
) -> EpisodeEvaluator:
    config = EpisodeEvaluatorConfig(episodes=episodes, max_episode_steps=max_episode_steps)
    return EpisodeEvaluator(env, config, seed)


def batch(makers: list[Any], mode: AutoresetMode | None, keys: tuple[str, ...] = ()) -> BatchEnv:
    if mode is None:
        return PlainBatch(makers, len(makers), keys)
    return VectorBatch(SyncVectorEnv(makers, autoreset_mode=mode), keys)


every_mode = pytest.mark.parametrize("mode", [None, *AutoresetMode])


def test_score_is_the_mean_return() -> None:
    score, record = evaluator(CountingBatch(2, length=3)).evaluate(ConstantAgent(1))
    # Rewards are 1 in the first and 11 in the second environment, three steps each.
    assert score == (3 + 33) / 2
    assert record == {
        "eval_reward": 18.0,
        "eval/return_min": 3.0,
        "eval/return_max": 33.0,
        "eval/return_std": 15.0,
        "eval/length_mean": 3.0,
    }


@every_mode
@pytest.mark.parametrize("episodes", [1, 4, 7])
def test_short_episodes_do_not_count_more_often(mode: AutoresetMode | None, episodes: int) -> None:
    plans: list[Plan] = [[(1, "T")], [(9, "C"), (2, "T")]]
    score, record = evaluator(batch(telling_makers(plans), mode), episodes).evaluate(
        ConstantAgent(0)
    )
    first, second = (episodes + 1) // 2, episodes // 2
    lengths = [(0, 1)] * first + [(1, 9)] * second
    returns = [sum(100 * who + t for t in range(1, length + 1)) for who, length in lengths]
    assert score == pytest.approx(sum(returns) / episodes)
    assert record["eval/return_max"] == max(returns)
    assert record["eval/length_mean"] == pytest.approx(sum(n for _, n in lengths) / episodes)


class Wandering(gymnasium.Env[Any, Any]):
    """Draws the start of an episode, its return, and then a length that depends on the actions."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, **how: Any) -> tuple[Array, dict[str, Any]]:
        super().reset(**how)
        self.left = 1.0
        self.start = float(self.np_random.random())
        return np.array([self.start], np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.left -= self.np_random.random() * (0.1 if action else 1.0)
        over = self.left < 0
        return np.array([self.start], np.float32), self.start * over, over, False, {}


@pytest.mark.behaviour(number=17)
@every_mode
def test_episode_k_begins_alike_for_every_policy_and_number_of_environments(
    mode: AutoresetMode | None,
) -> None:
    def starts(n_envs: int, action: int) -> tuple[float, ...]:
        env = batch([Wandering] * n_envs, mode)
        _, record = evaluator(env, 7, seed=5).evaluate(ConstantAgent(action))
        return tuple(record[f"eval/return_{name}"] for name in ("min", "max", "std"))

    assert starts(7, 0)[2] > 0.1
    assert {starts(n, action) for n in (1, 2, 3, 7, 8) for action in (0, 1)} == {starts(7, 0)}


class Reaching(gymnasium.Env[Any, Any]):
    """Ends after 2 steps. Infos say success in the first step, and for even seeds at the end.

    They also have a distance: 7 at the reset, then 1 and 2, times the seed.
    """

    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)

    def __init__(self, name: str) -> None:
        self.name, self.seed = name, 0

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Array, dict[str, Any]]:
        self.seed = self.seed if seed is None else seed
        self.steps = 0
        return np.zeros(1, np.float32), {self.name: 1.0, "distance": 7.0}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == 2
        reached = np.float32(not over or self.seed % 2 == 0)
        info = {self.name: reached, "distance": float(self.steps * self.seed)}
        return np.zeros(1, np.float32), 0.0, False, over, info


@every_mode
@pytest.mark.parametrize(("name", "rate"), [("is_success", 0.6), ("success", 0.6), ("other", None)])
def test_success_is_what_the_last_info_of_an_episode_says(
    mode: AutoresetMode | None, name: str, rate: float | None
) -> None:
    env = batch([partial(Reaching, name)] * 2, mode)
    _, record = evaluator(env, 5).evaluate(ConstantAgent(0))
    assert record.get("eval/success_rate") == rate


@every_mode
def test_numbers_of_infos_are_collected_by_episode(mode: AutoresetMode | None) -> None:
    keys = ("distance", "sum:distance", "mean:distance", "min:distance", "max:distance", "missing")
    env = batch([partial(Reaching, "other")] * 2, mode, keys)
    _, record = evaluator(env, 2).evaluate(ConstantAgent(0))  # seeds 0 and 1
    assert {name: value for name, value in record.items() if "info" in name} == {
        "eval/info/distance": 1.0,
        "eval/info/distance_sum": 1.5,
        "eval/info/distance_mean": 0.75,
        "eval/info/distance_min": 0.5,
        "eval/info/distance_max": 1.0,
    }


def test_score_is_the_environments_not_the_learners_reward() -> None:
    class Lives(CountingBatch):
        """Each second end is the loss of a life only, and the learner's rewards are all 0."""

        def step(self, action: Array) -> EnvStep:
            out = super().step(action)
            self.ends = getattr(self, "ends", 0) + int(out.terminated[0])
            over = out.terminated & (self.ends % 2 == 0)
            return out._replace(reward=out.reward * 0, score=out.reward, over=over)

    score, record = evaluator(Lives(2, length=3)).evaluate(ConstantAgent(1))
    assert score == (6 + 66) / 2
    assert record["eval/length_mean"] == 6


def test_environments_whose_episode_has_ended_rest_until_all_have() -> None:
    steps = [0, 0, 0]

    class Counting(TellingEnv):
        def step(self, action: Any) -> Any:
            steps[self._who] += 1
            return super().step(action)

    plans: list[Plan] = [[(2, "T")], [(9, "C")], [(4, "T")]]
    env = PlainBatch([partial(Counting, who, plan) for who, plan in enumerate(plans)], 3)
    for limit in (100, 3):
        _, record = evaluator(env, 4, max_episode_steps=limit).evaluate(ConstantAgent(0))
        assert record["eval/length_mean"] == np.mean(np.minimum([2, 9, 4, 2], limit))
    # Each steps once more when it rests: in the second round, two have no episode to play.
    assert steps == [2 * (2 + 1 + 2), (9 + 1) + (3 + 1), (4 + 1 + 1) + (3 + 1)]


@every_mode
def test_policy_with_a_memory_begins_each_episode_without_one(mode: AutoresetMode | None) -> None:
    plans: list[Plan] = [[(3, "T"), (2, "C")], [(2, "C"), (4, "T")]]
    env, policy = batch(telling_makers(plans), mode), CountingMemory()
    seen: list[list[int | None]] = []
    step = env.step

    def watched_step(action: Array) -> EnvStep:
        out = step(action)
        stepped = np.ones(2, bool) if out.stepped is None else out.stepped
        seen.append([int(a) if s else None for a, s in zip(action, stepped, strict=True)])
        return out

    env.step = watched_step  # type: ignore[method-assign]
    evaluator(env, 4).evaluate(policy)
    first, second = ([row[i] for row in seen if row[i] is not None] for i in (0, 1))
    assert first[:6] == [0, 1, 2, 0, 1, 2]
    resets_later = mode is AutoresetMode.NEXT_STEP
    assert second == ([0, 1, 0, 1] if resets_later else [0, 1, 0, 0, 1, 0])


@pytest.mark.parametrize("stochastic", [False, True])
def test_policy_explores_in_evaluations_only_if_asked_to(stochastic: bool) -> None:
    seen: list[bool] = []

    class Watched(ConstantAgent):
        def act(self, obs: Array) -> Act:
            seen.append(self.training)
            return super().act(obs)

    config = EpisodeEvaluatorConfig(episodes=2, stochastic=stochastic)
    for mode in (True, False):
        policy = Watched()
        policy.train(mode)
        EpisodeEvaluator(CountingBatch(), config, seed=0).evaluate(policy)
        assert policy.training == mode
    assert set(seen) == {stochastic}


def test_environment_without_an_end_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.actor.evaluator._LONG", 20)
    endless = CountingBatch(2, length=10**9)
    scores = evaluator(endless, episodes=2, max_episode_steps=25)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            score, cut = scores.evaluate(ConstantAgent(2))
    assert (score, cut["eval/length_mean"]) == (25 * 7.0, 25.0), "episodes are cut"
    (record,) = caplog.records
    assert "after 20 steps" in record.message
    assert "evaluate.play.max_episode_steps, which is 25" in record.message
