"""Exploration: schedules, ladders, shares of actions, settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.agents.parts.exploration import (
    FORBIDDEN,
    EpsilonGreedy,
    EpsilonLadder,
    Exploration,
    Explorer,
    Softmax,
)
from asyncrl.core.agent import PolicyContext


def explorer(exploration: Exploration, seed: int = 0, **context: int) -> Explorer:
    return Explorer(exploration, PolicyContext(seed=seed, **context), np.random.default_rng(seed))


def ladder(n_actors: int, n_envs: int, **settings: Any) -> list[float]:
    of_actors = [
        explorer(EpsilonLadder(**settings), actor_id=i, n_actors=n_actors, n_envs=n_envs)
        for i in range(n_actors)
    ]
    return [e for one in of_actors for e in one.epsilons(0).tolist()]


@pytest.mark.parametrize(("n_actors", "n_envs"), [(8, 1), (1, 8), (2, 4)])
def test_ladder_spans_the_environments_of_all_actors(n_actors: int, n_envs: int) -> None:
    # Horgan et al.: epsilon = 0.4, alpha = 7; with N = 8 the exponents are 1 to 8.
    assert ladder(n_actors, n_envs) == pytest.approx([0.4**k for k in range(1, 9)])


def test_each_environment_explores_as_its_rung_says() -> None:
    of_four = explorer(EpsilonLadder(), n_envs=4)
    q = np.tile(np.array([0.0, 0.0, 1.0, 0.0, 0.0]), (4, 1))
    explored = np.mean([of_four.choose(q, 0) != 2 for _ in range(3000)], axis=0)
    # A random action is the best one by chance in 1 of 5 cases.
    assert explored == pytest.approx(0.8 * of_four.epsilons(0), abs=0.03)
    assert of_four.record(0)["exploration_rate"] == pytest.approx(of_four.epsilons(0).mean())


def test_ladder_may_start_from_chance_as_well() -> None:
    of_three = explorer(EpsilonLadder(decay_env_steps=100), n_envs=3)
    final = np.array([0.4, 0.4**4.5, 0.4**8])
    assert of_three.epsilons(0) == pytest.approx(1.0)
    assert of_three.epsilons(50) == pytest.approx((1.0 + final) / 2)
    assert of_three.epsilons(100) == pytest.approx(final)


@pytest.mark.behaviour(number=7)
def test_softmax_draws_actions_in_proportion_to_their_exponentials() -> None:
    warm = explorer(Softmax(temperature=2.0))
    drawn = warm.choose(np.tile(np.array([0.0, 1.0, 3.0]), (5000, 1)), 0)
    expected = np.exp([0.0, 0.5, 1.5]) / np.exp([0.0, 0.5, 1.5]).sum()
    assert np.bincount(drawn, minlength=3) / 5000 == pytest.approx(expected, abs=0.02)
    assert warm.record(0) == {"exploration_temperature": 2.0}


def test_random_actions_last_until_an_episode_ends() -> None:
    one = explorer(EpsilonLadder(base=0.4, alpha=0.0, duration_env_steps=16), n_envs=64)
    q = np.tile(np.arange(9.0), (64, 1))
    chosen = np.array([one.choose(q, 0) for _ in range(2000)])
    changed = (chosen[1:] != chosen[:-1]).mean()
    # One step in 16 decides, and decides otherwise unless greedy or the same again.
    same = (0.6 + 0.4 / 9) ** 2 + 8 * (0.4 / 9) ** 2
    assert changed == pytest.approx((1 - same) / 16, rel=0.1)
    assert (chosen != 8).mean() == pytest.approx(0.4 * 8 / 9, rel=0.1)
    where = np.arange(64) < 32
    one.forget(where)
    after = one.choose(q, 0)
    assert (after != chosen[-1])[where].sum() > 3 + (after != chosen[-1])[~where].sum()


def test_random_actions_are_uniform_among_the_allowed_ones() -> None:
    one = explorer(EpsilonGreedy(epsilon=1.0), n_envs=9000)
    q = np.zeros((9000, 5), np.float32)
    q[:, [0, 3]] += np.float32(FORBIDDEN)
    counts = np.bincount(one.choose(q, 0), minlength=5)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert counts[[1, 2, 4]].min() > 2800
    everything = np.bincount(one.choose(np.zeros((9000, 5), np.float32), 0), minlength=5)
    assert everything.min() > 1600


def test_lasting_random_action_changes_where_it_becomes_forbidden() -> None:
    one = explorer(EpsilonLadder(base=1.0, alpha=0.0, duration_env_steps=1000), n_envs=50)
    q = np.zeros((50, 3), np.float32)
    first = one.choose(q, 0)
    q[np.arange(50), first] += np.float32(FORBIDDEN)
    assert (one.choose(q, 0) != first).all()


def test_a_ladder_follows_the_number_of_actors() -> None:
    one = explorer(EpsilonLadder(), actor_id=1, n_actors=2, n_envs=2)
    assert one.epsilons(0) == pytest.approx([0.4 ** (1 + 7 * i / 3) for i in (2, 3)])
    one.spread(4)
    assert one.epsilons(0) == pytest.approx([0.4 ** (1 + 7 * i / 7) for i in (2, 3)])
    one.spread(1)  # until it leaves, it stays at the end of the ladder
    assert one.epsilons(0) == pytest.approx([0.4**8] * 2)
