"""A curriculum reaches environments once, in time, and a resumed run continues it."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps
from asyncrl.run.env_schedule import EnvSchedule
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.support.fakes import ConstantConfig, CountingBatch

CONFIG = RunConfig(
    mode="sync",
    trainer=AsyncTrainerConfig(batch_size=4),
    limiter=RateLimiterConfig(samples_per_insert=1.0, min_size=8),
    evaluate=EvaluationConfig(where="off"),
)


def train(limit: int, *callbacks: EnvSchedule, **parts: Any) -> list[tuple[int, int]]:
    """Return the levels of the environments that were made, and the steps that each made."""
    made: list[Leveled] = []

    class Leveled(CountingBatch):
        def __init__(self, level: int = 0) -> None:
            super().__init__(n_envs=1, length=5)
            self.level, self.steps = level, 0
            made.append(self)

        def step(self, action: Array) -> Any:
            self.steps += 1
            return super().step(action)

    parts |= {"stop": MaxEnvSteps(limit), "callbacks": callbacks}
    trainer = build_trainer(CONFIG, agent=ConstantConfig(), env=Leveled, **parts)
    trainer.train()
    assert all(env.closed for env in made)
    return [(env.level, env.steps) for env in made]


def test_changes_come_with_the_first_episode_after_their_step() -> None:
    schedule = EnvSchedule({0: {"level": 1}, 12: {"level": 2}, 30: {"level": 2}, 31: {"level": 3}})
    assert train(40, schedule) == [(0, 0), (1, 15), (2, 20), (3, 5)]


def test_resumed_run_repeats_no_change_and_goes_on(tmp_path: Path) -> None:
    def schedule() -> EnvSchedule:
        return EnvSchedule({12: {"level": 2}, 31: {"level": 3}})

    assert train(22, schedule(), checkpoint_dir=tmp_path) == [(0, 15), (2, 7)]
    again = train(40, schedule(), checkpoint_dir=tmp_path, resume=True)
    assert again == [(0, 0), (2, 10), (3, 8)], "episodes restart with a checkpoint"


def test_resumed_run_follows_a_schedule_that_has_changed(tmp_path: Path) -> None:
    before = EnvSchedule({12: MappingProxyType({"level": 2})})  # any mapping
    now = EnvSchedule({12: {"level": 3}})
    assert train(22, before, checkpoint_dir=tmp_path) == [(0, 15), (2, 7)]
    levels = [level for level, _ in train(40, now, checkpoint_dir=tmp_path, resume=True)]
    assert levels[-1] == 3


@pytest.mark.parametrize(
    ("kwargs_at", "words"),
    [({-1: {}}, "0 or more, got -1"), ({"5": {}}, "got '5'"), ({5: 3}, "at 5 .* mapping")],
)
def test_schedule_that_cannot_be_is_refused(kwargs_at: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EnvSchedule(kwargs_at)


@pytest.mark.parametrize("kwargs", [{"a": np.zeros(2)}, {"a": (1, 2)}, {"a": float("inf")}])
def test_arguments_that_are_not_plain_are_refused(kwargs: Any) -> None:
    with pytest.raises(ConfigError, match="must be a mapping of names to numbers, text, None"):
        train(20, EnvSchedule({0: kwargs}))
