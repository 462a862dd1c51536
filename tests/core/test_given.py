"""What is neither settings nor a function that makes environments is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from asyncrl.core.env import look_at
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.training.config import AsyncConfig
from asyncrl.training.offline import train_from_data
from asyncrl.training.plan import RunPlan
from asyncrl.training.synchronous import train_sync
from tests.support.fakes import ConstantAgent, ConstantConfig, CountingBatch

Train = Callable[[Any, Any, Path], object]


def asynchronously(agent: Any, make_env: Any, _: Path) -> object:
    return RunPlan(agent, make_env, None, AsyncConfig(), None)


def synchronously(agent: Any, make_env: Any, directory: Path) -> object:
    return train_sync(agent, make_env, stop=MaxOptSteps(1), checkpoint_dir=directory)


def offline(agent: Any, make_env: Any, directory: Path) -> object:
    return train_from_data(
        agent, directory, make_env, stop=MaxOptSteps(1), checkpoint_dir=directory
    )


WAYS = pytest.mark.parametrize("train", [asynchronously, synchronously, offline])


@WAYS
@pytest.mark.parametrize(
    ("make_env", "words"),
    [
        ("CartPole-v1", "must be a function, got 'CartPole-v1', because training"),
        (EnvConfig(id="CartPole-v1"), r"must be a function, got EnvConfig\("),
        (CountingBatch(), "must be a function, got <tests.support.fakes.CountingBatch"),
        (lambda: gymnasium.make("CartPole-v1"), "must return a batch of environments, got <Time"),
        (lambda: None, "must return a batch of environments, got None"),
    ],
)
def test_what_makes_no_batch_is_refused_with_two_that_do(
    train: Train, make_env: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"make_env {words}.*EnvConfig.*\.build.*make_batch"):
        train(ConstantConfig(action=1), make_env, tmp_path / "none")
    assert not (tmp_path / "none").exists(), "nothing has begun"


@WAYS
@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (ConstantConfig, r"got their class; write ConstantConfig\(\)"),
        (ConstantAgent, "must be settings such as DQNConfig.., got <class .*ConstantAgent"),
        ("dqn", "must be settings such as DQNConfig.., got 'dqn'"),
    ],
)
def test_agent_that_is_no_settings_is_refused(
    train: Train, agent: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(agent, CountingBatch, tmp_path)


def test_environments_to_evaluate_on_are_looked_at_too() -> None:
    with pytest.raises(ConfigError, match="make_eval_env must return a batch"):
        train_sync(
            ConstantConfig(),
            CountingBatch,
            make_eval_env=lambda: gymnasium.make("CartPole-v1"),  # type: ignore[arg-type,return-value]
            stop=MaxOptSteps(1),
        )


def test_what_is_no_batch_is_closed() -> None:
    closed = []

    class Env:
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConfigError, match="must return a batch"):
        look_at(Env)  # type: ignore[arg-type]
    assert len(closed) == 1
