"""Atari games: standard preprocessing, and whole games are counted whatever the learner sees."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from asyncrl.core.env import BatchEnv, DiscreteSpec, EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from tests.envs.frames import stacks_follow
from tests.support.helpers import wait_until

pytest.importorskip("ale_py", reason="ale-py is not installed: pip install 'asyncrl[atari]'")

from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

BREAKOUT = "ALE/Breakout-v5"
PLAIN_GAME = {"repeat_action_probability": 0.0, "noop_max": 0, "fire_reset": False}
N_FRAMES = 4


def make(env_id: str = BREAKOUT, n_envs: int = 2, **settings: Any) -> BatchEnv:
    return EnvConfig(id=env_id, n_envs=n_envs, kwargs=settings).build()


def play(env: BatchEnv, n_steps: int, seed: int = 5) -> tuple[np.ndarray, list[EnvStep]]:
    """Press the button now and then, as games of Breakout need, and do nothing else."""
    first = env.reset(seed)
    actions = [np.full(env.n_envs, int(step % 5 == 0)) for step in range(n_steps)]
    return first.copy(), [env.step(action) for action in actions]


def test_preprocessing_is_that_of_gymnasiums_wrappers() -> None:
    pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    bare = gymnasium.make(
        BREAKOUT, frameskip=1, repeat_action_probability=0.0, obs_type="grayscale"
    )
    wrapped = gymnasium.wrappers.AtariPreprocessing(bare, noop_max=0)
    reference = gymnasium.wrappers.FrameStackObservation(wrapped, N_FRAMES)
    env = make(n_envs=1, **PLAIN_GAME)
    expected, _ = reference.reset(seed=0)
    assert (env.reset(0)[0] == expected).all()
    rng = np.random.default_rng(1)
    score = 0.0
    for _ in range(300):
        action = int(rng.integers(4))
        expected, reward, terminated, truncated, _ = reference.step(action)
        step = env.step(np.array([action]))
        assert step.score is not None
        assert (float(step.score[0]), bool(step.terminated[0])) == (reward, terminated)
        score += float(reward)
        if terminated or truncated:
            expected, _ = reference.reset(seed=0)
            env.reset(0)
        else:
            assert (step.obs[0] == expected).all()
    assert score > 0
    env.close()


def test_spaces_are_stacked_frames_and_the_games_own_actions() -> None:
    env = make("ALE/Pong-v5")
    assert env.spec.observation.shape == (N_FRAMES, 84, 84)
    assert env.spec.observation.dtype == "uint8"
    assert env.spec.action == DiscreteSpec(6)
    assert env.n_envs == 2
    assert make("ALE/Pong-v5", full_action_space=True).spec.action == DiscreteSpec(18)
    assert make("ALE/Pong-v5", frame_stack=2).spec.observation.shape == (2, 84, 84)


def test_last_observation_is_the_one_that_the_game_ended_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gymnasium.vector.VectorEnv, "metadata", {})  # it would write into this one
    native: Any = AtariVectorEnv(
        "breakout", 2, autoreset_mode=AutoresetMode.NEXT_STEP, reward_clipping=False, noop_max=0
    )
    native.reset(seed=5)
    _, steps = play(make(repeat_action_probability=0.0, noop_max=0), 200)
    end = next(k for k, step in enumerate(steps) if step.over is not None and step.over.any())
    for k, step in enumerate(steps[: end + 1]):
        obs, reward, terminated, truncated, _ = native.step(np.full(2, int(k % 5 == 0)))
        if k >= N_FRAMES:
            assert (obs == step.final_obs).all()
        assert reward.tolist() == step.reward.tolist()
        assert (terminated.tolist(), truncated.tolist()) == (
            step.terminated.tolist(),
            step.truncated.tolist(),
        )
    assert (steps[end].obs != steps[end].final_obs).any()


def test_lost_incarnation_ends_an_episode_for_the_learner_only() -> None:
    first, whole = play(make(**PLAIN_GAME), 270)
    assert stacks_follow(first, whole) >= 2
    first, lives = play(make(**PLAIN_GAME, life_loss=True), 270)
    assert stacks_follow(first, lives) >= 10, "lives too begin with one frame only"
    for a, b in zip(whole, lives, strict=True):
        assert a.counted[0].tolist() == b.counted[0].tolist()
        assert a.counted[1].tolist() == b.counted[1].tolist()
        assert a.counted[1].tolist() == a.terminated.tolist()
        assert not (b.counted[1] & ~b.terminated).any(), "the learner sees the end of the game"
        assert (a.final_obs[:, -1] == b.final_obs[:, -1]).all(), "the same game"
    games = sum(int(step.counted[1].sum()) for step in lives)
    terminations = sum(int(step.terminated.sum()) for step in lives)
    assert games >= 2
    assert terminations >= 5 * games, "games of Breakout have five lives"


def test_rewards_are_clipped_and_scores_are_not() -> None:
    pacman = "ALE/MsPacman-v5"
    _, clipped = play(make(pacman), 100)
    _, plain = play(make(pacman, clip_rewards=False), 100)
    scores = np.array([step.counted[0] for step in clipped])
    assert scores.max() >= 10
    assert np.array_equal(scores, [step.reward for step in plain])
    assert np.array_equal(np.clip(scores, -1, 1), [step.reward for step in clipped])
    assert clipped[0].reward.dtype == np.float32


def test_seed_decides_everything_and_each_game_has_its_own() -> None:
    env = make("ALE/MsPacman-v5")
    first, steps = play(env, 60, seed=2**31 - 1)
    again, same = play(env, 60, seed=2**31 - 1)
    _, other = play(env, 60, seed=3)
    frames = [np.stack([step.obs for step in run]) for run in (steps, same, other)]
    assert (first == again).all()
    assert (frames[0] == frames[1]).all()
    assert (frames[0] != frames[2]).any()
    assert (frames[0][:, 0] != frames[0][:, 1]).any()


def test_close_ends_its_threads() -> None:
    process = psutil.Process()
    before = process.num_threads()
    env = make(num_threads=2)
    env.reset(0)
    assert process.num_threads() >= before + 2
    env.close()
    env.close()
    wait_until(lambda: process.num_threads() <= before, 10.0, "the end of its threads")


def test_settings_of_the_bare_environment_are_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"obs_type: .*'ale_py:ALE/Breakout-v5'"):
        make(obs_type="ram")
