"""What is not what a builder takes is refused in a sentence, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from asyncrl.core.callback import Callback
from asyncrl.core.env import source_of
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.run.plan import check_run
from asyncrl.run.run_config import RunConfig, config_or_default
from asyncrl.run.train import build_trainer, train_from_data, train_sync
from tests.support.fakes import ConstantConfig, CountingBatch


class Hiding(Callback):
    """A callback whose counter has the name of a method."""

    def __init__(self) -> None:
        self.step = 0  # type: ignore[method-assign, assignment]


Train = Callable[[Any, Any, Path], object]


def asynchronously(agent: Any, make_env: Any, _: Path) -> object:
    check_run(config_or_default(agent, None), make_env)
    return source_of(make_env).describe()


def synchronously(agent: Any, make_env: Any, directory: Path) -> object:
    return train_sync(agent, make_env, stop=MaxOptSteps(1), checkpoint_dir=directory)


def offline(agent: Any, make_env: Any, directory: Path) -> object:
    return train_from_data(
        agent, directory, make_env, stop=MaxOptSteps(1), checkpoint_dir=directory
    )


@pytest.mark.parametrize(
    ("train", "make_env", "words"),
    [
        (synchronously, "CartPole-v1", "must be a function, got 'CartPole-v1', because training"),
        (offline, EnvConfig(id="CartPole-v1"), r"must be a function, got EnvConfig\("),
        (asynchronously, lambda: gymnasium.make("CartPole-v1"), "must return a batch .*<Time"),
    ],
)
def test_what_makes_no_batch_is_refused_with_two_that_do(
    train: Train, make_env: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"make_env {words}.*EnvConfig.*\.build.*make_batch"):
        train(ConstantConfig(action=1), make_env, tmp_path / "none")
    assert not (tmp_path / "none").exists(), "nothing has begun"


@pytest.mark.parametrize("train", [asynchronously, synchronously, offline])
@pytest.mark.parametrize("agent", [ConstantConfig, "dqn"])
def test_agent_that_is_no_settings_is_refused(train: Train, agent: Any, tmp_path: Path) -> None:
    words = "write ConstantConfig" if agent is ConstantConfig else "must be a config .*, got 'dqn'"
    with pytest.raises(ConfigError, match=words):
        train(agent, CountingBatch, tmp_path)


def test_what_is_no_batch_is_closed() -> None:
    closed = []

    class Env:
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConfigError, match="must return a batch"):
        source_of(Env).describe()  # type: ignore[arg-type]
    assert len(closed) == 1


@pytest.mark.parametrize("mode", ["async", "sync", "offline"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stop": 20}, "stop must .* got 20; pass .*MaxEnvSteps"),
        ({"recorder": "x.jsonl"}, "recorder must .* got 'x.jsonl'; pass .*JsonlRecorder"),
        ({"callbacks": Callback()}, r"callbacks must .* got .*: callbacks=\[Callback\(\)\]"),
        ({"callbacks": [Hiding()]}, "attribute `step` = 0 of callback Hiding"),
        ({"make_evaluator": object()}, "make_evaluator must .* got <object"),
        ({"checkpoint_dir": 3}, "checkpoint_dir must .* got 3"),
        ({"config": 3}, r"config must be RunConfig.* got 3"),
    ],
)
def test_part_that_is_none_is_refused_before_anything_starts(
    mode: Any, given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    data = tmp_path / "data" if mode == "offline" else None
    parts = {"config": RunConfig(mode=mode), "checkpoint_dir": tmp_path / "none", **given}
    with pytest.raises(ConfigError, match=words):
        build_trainer(agent=ConstantConfig(), env=CountingBatch, data=data, **parts)
    assert not (tmp_path / "none").exists(), "nothing has begun"
