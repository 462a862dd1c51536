"""An agent that breaks its contract gets an error: what came, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, Columns
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_sync
from tests.support.fakes import ConstantAgent, CountingBatch

CONFIG = RunConfig(
    trainer=AsyncTrainerConfig(batch_size=2),
    limiter=RateLimiterConfig(min_size=4),
    record=RecordConfig(interval_opt_steps=1),
    evaluate=EvaluationConfig(interval_opt_steps=1, play=EpisodeEvaluatorConfig(episodes=1)),
)


@dataclass(frozen=True)
class WrongConfig:
    """Makes an agent that acts, returns or declares something invalid."""

    acts: Any = None
    acts_evaluated: Any = None
    reported: Any = None
    columns: tuple[ColumnSpec, ...] = ()

    def build(self, spec: EnvSpec, context: PolicyContext) -> WrongAgent:
        return WrongAgent(self)

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> WrongAgent:
        return WrongAgent(self)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return self.columns


class WrongAgent(ConstantAgent):
    def __init__(self, config: WrongConfig) -> None:
        super().__init__()
        self.config = config

    def act(self, obs: Array) -> Act:
        wrong = self.config.acts if self.training else self.config.acts_evaluated
        return super().act(obs) if wrong is None else cast(Act, wrong)

    def opt(self, batch: Columns) -> Mapping[str, float]:
        reported = super().opt(batch)
        return (
            cast(Mapping[str, float], self.config.reported)
            if self.config.reported != {}
            else reported
        )


FINE = WrongConfig(reported={})
ACTIONS = np.zeros(2, np.int64)
EXTRA = Act(ACTIONS, {"v": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(FINE, acts=ACTIONS), r"`act` must return Act\(action\), got \[0, 0\]; wrap"),
        (replace(FINE, acts=EXTRA), r"rows have a column 'v', and .*declare it in `extra_columns`"),
        (
            replace(FINE, acts=EXTRA, columns=(ColumnSpec("v", "float32", (3,)),)),
            r"column 'v' of 2 rows has shape \(2,\).* was declared with \(2, 3\) and float32",
        ),
        (replace(FINE, reported=0.5), "`opt` of WrongAgent must return numbers by name, got 0.5"),
        (
            replace(FINE, reported={"loss": 1.0, "q": np.zeros(3)}),
            r"agent/q must be one number, got \[0.0, 0.0, 0.0\]; .*take the mean",
        ),
        (replace(FINE, reported={"mode": "greedy"}), "agent/mode must be one number, got 'greedy'"),
    ],
)
def test_wrong_agent_gets_an_error_that_says_what_is_wrong(config: WrongConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train_sync(config, CountingBatch, CONFIG, stop=MaxOptSteps(3))


def test_agent_may_report_nothing_and_leave_its_models_unnumbered() -> None:
    assert train_sync(FINE, CountingBatch, CONFIG, stop=MaxOptSteps(3)).opt_steps == 3
