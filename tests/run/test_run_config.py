"""A run's whole configuration: its limits, its environments, and the way to a file and back."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.run.modes import NEEDS, check_mode
from asyncrl.run.parts import Parts
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer


def test_whichever_limit_comes_first_ends_the_run() -> None:
    config = RunConfig(max_env_steps=100, max_opt_steps=20, max_seconds=3.5, stop_at_return=200.0)
    stop = config.stop_condition()
    assert stop
    assert stop.limits() == {"env_steps": 100, "opt_steps": 20, "train_s": 3.5}
    near = {"env_steps": 99.0, "opt_steps": 19.0, "train_s": 3.4, "eval_reward": 199.0}
    assert stop.update(near) is None
    for name, value in (("env_steps", 100), ("opt_steps", 20), ("train_s", 3.5)):
        stop = config.stop_condition()
        assert stop
        assert stop.update({**near, name: value})
    stop = config.stop_condition()
    assert stop
    assert stop.update({**near, "eval_reward": 200.0})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"evaluate": EvaluationConfig(where="off")}, "evaluate.where"),
        ({"evaluate": EvaluationConfig(interval_opt_steps=0)}, "evaluate.interval_opt_steps"),
    ],
)
def test_target_return_without_evaluations_is_rejected(settings: Any, name: str) -> None:
    config = RunConfig(stop_at_return=475.0, max_env_steps=10, **settings)
    with pytest.raises(
        ConfigError, match=f"stop_at_return waits for evaluations, but {name} is off"
    ):
        config.stop_condition()
    assert replace(config, stop_at_return=None).stop_condition()


def test_environments_are_as_many_as_asked_for() -> None:
    config = RunConfig(env="CartPole-v1", env_kwargs={"sutton_barto_reward": True})
    assert config.env_config().n_envs == config.envs_per_actor == 8
    env = config.env_config().build_for(episodes=3)()
    env.reset(seed=0)
    assert env.n_envs == 3
    assert env.step(np.zeros(3, np.int64)).reward.tolist() == [0.0, 0.0, 0.0]
    env.close()


def test_evaluations_may_take_place_elsewhere_in_the_same_wrappers() -> None:
    limit = "gymnasium.wrappers:TimeLimit(max_episode_steps=50)"
    train, other = {"a": 1, "b": 2}, {"b": 3, "c": 4}
    config = RunConfig(env_kwargs=train, eval_env_kwargs=other, env_wrappers=(limit,))
    assert config.env_config().kwargs == train
    assert config.eval_env_config() == replace(config.env_config(), kwargs=train | other)


def test_table_of_modes_names_settings_and_arguments_that_there_are() -> None:
    arguments = {*Parts.__optional_keys__, *signature(build_trainer).parameters}
    for path in {path for need in NEEDS for path in (need.setting, *need.names)}:
        owner, _, name = path.rpartition(".")
        cls = type(attrgetter(owner)(RunConfig())) if owner else RunConfig
        assert path in arguments or name in {field.name for field in fields(cls)}, path


def test_what_presets_bring_along_is_refused_in_a_mode_only_if_it_is_given() -> None:
    config = replace(RunConfig(mode="sync"), actors=7)
    check_mode(config, ["actors", "trainer.batch_size"])
    with pytest.raises(ConfigError, match=r"transport\.window has no effect with mode=sync"):
        check_mode(config, ["transport.window"])
    with pytest.raises(ConfigError, match=r"ray\.hosts has no effect with launcher=process"):
        check_mode(RunConfig(), ["ray.hosts"])
    check_mode(RunConfig(launcher="ray"), ["ray.hosts", "hosts.min_actors"])
