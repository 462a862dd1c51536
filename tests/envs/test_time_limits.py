"""A batch cuts episodes off exactly where Gymnasium's wrappers do, without calling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.envs.batch import PlainBatch
from tests.support.fake_envs import Plan, TellingEnv
from tests.support.scale import examples

Wrap = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


class ShortenedTimeLimit(TimeLimit[Any, Any]):
    """A time limit of a user's, that does more than Gymnasium's."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + 1000.0, terminated, truncated, info


class Calls(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the steps that go through it."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)


def limited(limit: int) -> Wrap:
    return lambda env: TimeLimit(OrderEnforcing(env), limit)


wraps = st.sampled_from(
    [
        *(limited(limit) for limit in (1, 2, 3, 7)),
        lambda env: env,
        OrderEnforcing,
        lambda env: OrderEnforcing(TimeLimit(TimeLimit(env, 2), 4)),
        lambda env: TimeLimit(Calls(TimeLimit(env, 3)), 5),
        lambda env: ShortenedTimeLimit(env, 4),
        lambda env: TimeLimit(ShortenedTimeLimit(env, 4), 3),
    ]
)

ends = st.tuples(st.integers(1, 6), st.sampled_from(["T", "C", "TC"]))
plans = st.lists(ends, min_size=1, max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(wraps, plans), min_size=1, max_size=4), st.sets(st.integers(0, 29)))
def test_a_batch_is_its_environments_stepped_by_hand(
    kinds: list[tuple[Wrap, Plan]], resets: set[int]
) -> None:
    batch = PlainBatch([lambda k=k: k[0](TellingEnv(0, k[1])) for k in kinds], len(kinds))
    envs = [wrap(TellingEnv(0, plan)) for wrap, plan in kinds]
    for turn in range(30):
        if turn == 0 or turn in resets:
            first = batch.reset(turn)
            assert first.tolist() == [
                env.reset(seed=turn + i)[0].tolist() for i, env in enumerate(envs)
            ]
        action = np.full(len(envs), turn % 5)
        step = batch.step(action)
        for i, env in enumerate(envs):
            after, reward, terminated, truncated, _ = env.step(turn % 5)
            assert step.final_obs[i].tolist() == after.tolist()
            assert step.reward[i] == reward
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            if terminated or truncated:
                after = env.reset()[0]
            assert step.obs[i].tolist() == after.tolist()


def test_gymnasiums_own_wrappers_are_not_called_and_others_are() -> None:
    outside, inside = (Calls(limited(4)(TellingEnv())), Calls(TellingEnv()))
    unused = limited(4)(inside)
    batch = PlainBatch([lambda: outside, lambda: unused], 2)
    batch.reset(0)
    batch.step(np.zeros(2, np.int64))
    assert (outside.steps, inside.steps) == (1, 1)
    counted = [env._elapsed_steps for env in (outside.env, unused)]  # type: ignore[attr-defined]
    assert counted == [1, 0]


@pytest.mark.parametrize("changed", [2, 9])
def test_a_changed_limit_counts_from_the_next_episode_on(changed: int) -> None:
    limits = [TimeLimit(TellingEnv(plan=[(50, "T")]), 5) for _ in range(2)]
    waiting = iter(limits)
    batch = PlainBatch(lambda: limited(100)(next(waiting)), 2)
    batch.reset(0)
    ends: list[list[int]] = [[], []]
    for turn in range(1, 21):
        if turn == 4:
            limits[0]._max_episode_steps = changed
        for i in batch.step(np.zeros(2, np.int64)).truncated.nonzero()[0]:
            ends[i].append(turn)
    assert ends == [[5, *range(5 + changed, 21, changed)], [5, 10, 15, 20]]
