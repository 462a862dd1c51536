"""EnvPool's environments: what they say of resets is true, and their seeds are the run's."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import psutil
import pytest

from asyncrl.core.env import BatchEnv, DiscreteSpec, EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from tests.envs.frames import stacks_follow
from tests.support.helpers import wait_until

envpool = pytest.importorskip(
    "envpool", reason="EnvPool is not installed: pip install 'asyncrl[envpool]'"
)

CART_POLE = "envpool:CartPole-v1"
BREAKOUT = "envpool:Breakout-v5"


def make(env_id: str = CART_POLE, n_envs: int = 2, **settings: Any) -> BatchEnv:
    return EnvConfig(id=env_id, n_envs=n_envs, kwargs=settings).build()


def play(env: BatchEnv, n_steps: int, action: int = 1, seed: int = 5) -> list[EnvStep]:
    env.reset(seed)
    return [env.step(np.full(env.n_envs, action)) for _ in range(n_steps)]


def test_no_transition_leads_across_a_reset() -> None:
    steps = play(make(), 60)
    ends = 0
    for before, step in pairwise(steps):
        ended = before.terminated
        assert (np.abs(before.final_obs[ended, 2]) > 0.2).all(), "a pole falls at 12 degrees"
        if not ended.any():
            assert step.stepped is None
            continue
        ends += int(ended.sum())
        assert step.stepped is not None
        assert (step.stepped == ~ended).all()
        assert (np.abs(step.obs[ended]) < 0.05).all(), "episodes begin close to 0"
        assert (step.reward == step.stepped).all()
    assert ends >= 8


def test_seed_decides_everything_and_each_environment_has_its_own() -> None:
    env = make()
    with warnings.catch_warnings(action="error"):
        first, again = env.reset(2**31 - 1), env.reset(2**31 - 1)
    assert (first == again).all()
    assert (first[0] != first[1]).all()
    assert (env.reset(7) != first).all()
    run, same = play(env, 40), play(env, 40)
    assert all((a.obs == b.obs).all() for a, b in zip(run, same, strict=True))


def test_whole_atari_games_are_counted_with_clipped_rewards_too() -> None:
    env = make(BREAKOUT, episodic_life=True, reward_clip=True)
    assert env.spec.action == DiscreteSpec(4)
    first = env.reset(5)
    steps = [env.step(np.full(2, int(k % 5 == 0))) for k in range(280)]
    assert stacks_follow(first, steps) >= 10, "lives too begin with one frame only"
    terminations = sum(int(step.terminated.sum()) for step in steps)
    games = sum(int(step.counted[1].sum()) for step in steps)
    assert games >= 2
    assert terminations >= 5 * games, "games of Breakout have five lives"
    assert not any((step.counted[1] & ~step.terminated).any() for step in steps)


def test_scores_are_not_clipped() -> None:
    clipped = play(make("envpool:MsPacman-v5", reward_clip=True), 120, action=3)
    plain = play(make("envpool:MsPacman-v5"), 120, action=3)
    scores = np.array([step.counted[0] for step in clipped])
    assert scores.max() >= 10
    assert np.array_equal(scores, [step.reward for step in plain])
    assert np.array_equal(np.clip(scores, -1, 1), [step.reward for step in clipped])


def test_close_and_reset_leave_no_threads() -> None:
    process = psutil.Process()
    before = process.num_threads()
    env = make(num_threads=2)
    for seed in range(3):
        env.reset(seed)
    wait_until(lambda: process.num_threads() <= before + 4, 10.0, "the end of replaced threads")
    env.close()
    env.close()
    wait_until(lambda: process.num_threads() <= before, 10.0, "the end of its threads")


@pytest.mark.parametrize(
    ("env_id", "settings", "message"),
    [
        ("envpool:CartPol-v1", {}, r"no environment 'CartPol-v1'; did you mean CartPole"),
        ("envpool:Xyzzy", {}, r"no environment 'Xyzzy'(?!;)"),
        (CART_POLE, {"batch_size": 1}, "batch_size cannot be set here"),
        (CART_POLE, {"stack": 4}, r"EnvPool rejects \{'stack': 4\}: .*stack"),
    ],
)
def test_what_cannot_be_made_is_named(env_id: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(env_id, **settings)
