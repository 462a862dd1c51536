"""A run's whole configuration: presets, limits, and the way to a file and back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.exploration import Softmax
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.cli.run_config import RunConfig, preset, preset_like, preset_lines, with_replay
from asyncrl.config import load_yaml, save_yaml
from asyncrl.errors import ConfigError
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.replay_buffers.prioritized import PrioritizedReplayConfig
from asyncrl.replay_buffers.trajectories import TrajectoryQueueConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.train import build_async_trainer
from tests.fakes import ConstantConfig


def test_presets_are_complete() -> None:
    assert (preset("dqn").agent, preset("dqn").env) == (DQNConfig(), "CartPole-v1")
    assert isinstance(preset("sac").agent, SACConfig)
    assert preset("sac").env == "Pendulum-v1"
    atari = preset("dqn-atari")
    assert (atari.env, atari.segment.frame_stack) == ("ALE/Pong-v5", 4)
    assert preset("tests.fakes:ConstantConfig") == RunConfig(agent=ConstantConfig())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "unknown agent 'nothing'; use .*dqn, dqn-atari, "),
        ("dqn_atari", "unknown agent 'dqn_atari'"),
        ("../presets/dqn", "unknown agent"),
        ("tests.fakes:COUNTING_SPEC", "no class of agent configs"),
        ("tests.fakes:CountingBatch", "build, build_policy and extra_columns"),
        ("tests.fakes:Nobody", "has no 'Nobody'"),
    ],
)
def test_what_is_no_agent_config_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        preset(name)


@pytest.mark.parametrize("name", preset_lines())
def test_preset_is_fit_to_train(name: str) -> None:
    config = preset(name)
    replay: Any = config.replay
    small = replace(config, replay=replace(replay, capacity=min(replay.capacity, 20_000)))
    try:
        trainer = build_async_trainer(config.agent, config.env_config().build, small)
    except ConfigError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(f"a package is missing: {error}")
    trainer.close()
    assert 1 <= config.limiter.samples_per_insert <= 256
    assert config.limiter.min_size <= config.replay.capacity
    assert config.trainer.batch_size <= config.replay.capacity
    assert config.stop_condition() is None, "how long to train is for the user to say"


@pytest.mark.parametrize("name", preset_lines())
def test_preset_says_in_a_line_what_it_is_for(name: str) -> None:
    line = preset_lines()[name]
    assert line.endswith(".")
    assert len(f"{name}: {line}") <= 100


def test_presets_have_the_names_of_their_files() -> None:
    assert {"dqn", "dqn-atari", "sac"} <= set(preset_lines())


@pytest.mark.parametrize("name", ["max_env_steps", "max_opt_steps", "max_seconds", "grace_s"])
@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_limits_that_are_negative_or_no_numbers_are_refused(name: str, value: Any) -> None:
    # A checkpoint has no room for infinity, so the run would fail when it first saves.
    with pytest.raises(
        ConfigError, match=rf"{name} must be a number, 0 \(off\) or more, got {value}"
    ):
        RunConfig(**{name: value})


def test_replay_of_another_kind_keeps_the_settings_both_have() -> None:
    start = preset("dqn")
    chosen = with_replay(start, "prioritized")
    assert chosen.replay == PrioritizedReplayConfig(n_step=5)
    assert with_replay(chosen, "prioritized") is chosen
    assert with_replay(chosen, "uniform") == start


def test_replay_with_a_layout_of_its_own_stays() -> None:
    start = RunConfig(
        replay=TrajectoryQueueConfig(), limiter=RateLimiterConfig(samples_per_insert=1.0)
    )
    with pytest.raises(ConfigError, match="would replace TrajectoryQueueConfig, whose batches DQN"):
        with_replay(start, "prioritized")


def test_settings_of_every_run_are_checked_here_too() -> None:
    with pytest.raises(ConfigError, match="actors must be at least 1, got 0"):
        RunConfig(actors=0)


@pytest.mark.parametrize("how", ["batch", "native"])
def test_environments_step_as_told(how: Literal["batch", "native"]) -> None:
    assert RunConfig(vectorization=how).env_config().vectorization == how


def test_run_without_limits_has_no_end_of_its_own() -> None:
    assert RunConfig().stop_condition() is None


def test_whichever_limit_comes_first_ends_the_run() -> None:
    config = RunConfig(max_env_steps=100, max_opt_steps=20, max_seconds=3.5, stop_at_return=200.0)
    stop = config.stop_condition()
    assert stop
    assert stop.limits() == {"env_steps": 100, "opt_steps": 20, "wall_s": 3.5}
    near = {"env_steps": 99.0, "opt_steps": 19.0, "wall_s": 3.4, "eval_reward": 199.0}
    assert stop.update(near) is None
    for name, value in (("env_steps", 100), ("opt_steps", 20), ("wall_s", 3.5)):
        stop = config.stop_condition()
        assert stop
        assert stop.update({**near, name: value})
    stop = config.stop_condition()
    assert stop
    assert stop.update({**near, "eval_reward": 200.0})


def test_target_of_0_is_a_target() -> None:
    stop = RunConfig(stop_at_return=0.0).stop_condition()
    assert stop
    assert stop.update({"eval_reward": -0.5}) is None
    assert stop.update({"eval_reward": 0.0})


def test_environments_are_as_many_as_asked_for() -> None:
    config = RunConfig(env="CartPole-v1", env_kwargs={"sutton_barto_reward": True})
    assert config.env_config().n_envs == config.envs_per_actor == 8
    env = config.env_config().build_for(episodes=3)
    env.reset(seed=0)
    assert env.n_envs == 3
    assert env.step(np.zeros(3, np.int64)).reward.tolist() == [0.0, 0.0, 0.0]
    env.close()


def test_evaluations_may_take_place_elsewhere() -> None:
    config = RunConfig(env_kwargs={"a": 1, "b": 2}, eval_env_kwargs={"b": 3, "c": 4})
    assert config.env_config().kwargs == {"a": 1, "b": 2}
    assert config.eval_env_config().kwargs == {"a": 1, "b": 3, "c": 4}
    assert config.eval_env_config().id == config.env_config().id


def test_file_gives_the_same_config_back(tmp_path: Path) -> None:
    config = RunConfig(
        agent=DQNConfig(hidden=(7,), exploration=Softmax(temperature=2.0)),
        env_kwargs={"maps": ["a", "b"], "size": 3},
        replay=UniformReplayConfig(capacity=4321, n_step=3),
        stop_at_return=1.5,
    )
    save_yaml(config, tmp_path / "config.yaml")
    assert load_yaml(RunConfig, tmp_path / "config.yaml") == config


def test_every_preset_is_most_like_itself() -> None:
    for name in preset_lines():
        assert preset(preset_like(preset(name))).agent == preset(name).agent
    changed = RunConfig(agent=PPOConfig(correction="vtrace", epochs=3))
    assert preset_like(changed) == "appo"
    assert preset_like(RunConfig(agent=ConstantConfig())) == "tests.fakes:ConstantConfig"
