"""The synchronous trainer: exact counts, exact order, the same bits twice; and offline training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.actor.step_processor import OneStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.source import DataSource
from asyncrl.learner.stop_conditions import MaxEnvSteps, MaxOptSteps
from asyncrl.learner.trainer import Trainer
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import Rounds
from asyncrl.run.synchronous import InlineSource
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, CountingBatch
from tests.support.services import services_config
from tests.support.streams import make_outbox


def build(
    *, n_envs: int = 1, capacity: int = 500, agent: ConstantAgent | None = None, **parts: Any
) -> Trainer:
    settings = {"batch_size": 4, "warmup_env_steps": 20} | parts.pop("settings", {})
    replay = UniformReplayConfig(capacity=capacity, n_step=2)
    rounds = Rounds(**settings)
    schema = make_schema(OneStep().columns(COUNTING_SPEC, ()), length=1, lookahead=replay.lookahead)
    agent = agent or ConstantAgent()
    source = InlineSource(
        agent,
        CountingBatch(n_envs=n_envs),
        replay.build(schema, seed=1),
        rounds,
        schema=schema,
        processor=OneStep(),
        seed=3,
    )
    if evaluator := parts.pop("evaluator", None):
        parts["evaluation"] = InlineEvaluation(evaluator, agent)
    return Trainer(agent, source, **{"stop": MaxEnvSteps(100)} | parts)


@pytest.mark.behaviour(number=1)
@pytest.mark.parametrize(
    ("interval", "per_interval", "expected"), [(1, 1, 80), (4, 1, 20), (4, 3, 60), (30, 1, 2)]
)
def test_counts_are_exact(interval: int, per_interval: int, expected: int) -> None:
    settings = {"opt_interval_env_steps": interval, "opt_steps_per_interval": per_interval}
    trainer = build(settings=settings)
    result = trainer.train()
    assert (result.env_steps, result.opt_steps) == (100, expected)
    assert trainer.agent.opt_steps == expected  # type: ignore[attr-defined]


@pytest.mark.behaviour(number=13)
def test_nothing_is_optimised_or_evaluated_before_the_warm_up_is_over() -> None:
    evaluator = ScriptedEvaluator([1.0] * 100)
    trainer = build(
        settings={"warmup_env_steps": 100},
        services=services_config(evaluate_interval_opt_steps=1),
        evaluator=evaluator,
    )
    assert (trainer.train().opt_steps, evaluator.calls) == (0, 0)


def build_on_policy(agent: ConstantAgent, n_envs: int, **settings: int) -> Trainer:
    rounds = Rounds(**settings)
    schema = make_schema(OneStep().columns(COUNTING_SPEC, ()), length=6, lookahead=1)
    source = InlineSource(
        agent,
        CountingBatch(n_envs),
        TrajectoryQueueConfig().build(schema, 0),
        rounds,
        schema=schema,
        segment=SegmentConfig(length=6),
        processor=OneStep(),
        seed=3,
    )
    return Trainer(agent, source, stop=MaxOptSteps(5))


@pytest.mark.behaviour(number=6)
def test_on_policy_round_learns_from_all_that_was_collected_and_nothing_else() -> None:
    agent, n_envs, round_steps = ConstantAgent(), 2, 8
    trainer = build_on_policy(
        agent, n_envs, batch_size=round_steps, opt_interval_env_steps=round_steps
    )
    result = trainer.train()
    assert result.env_steps == 5 * round_steps
    assert len(trainer.source.buffer) == 0
    for version, batch in enumerate(agent.batches):
        mask = batch["mask"]
        assert mask.sum() == round_steps
        assert set(batch["model_version"][mask]) == {version}, "the model that is about to change"
        steps = batch["obs"][:, :-1, 1][mask].reshape(n_envs, -1)
        first = version * round_steps // n_envs
        assert (steps == np.arange(first, first + steps.shape[1]) % 3).all()


def test_round_ends_when_whole_trajectories_are_used_up() -> None:
    agent = ConstantAgent()
    trainer = build_on_policy(
        agent, 2, batch_size=2, opt_steps_per_interval=4, opt_interval_env_steps=8
    )
    assert trainer.train().env_steps == 22, "of 24, as a round is not over"
    assert [int(batch["mask"].sum()) for batch in agent.batches] == [4] * 5, "two a round"


@pytest.mark.behaviour(number=14)
@pytest.mark.parametrize(
    ("settings", "words"),
    [({"batch_size": 501}, "batch_size of 501"), ({"warmup_env_steps": 501}, "warm-up of 501")],
)
def test_what_does_not_fit_the_buffer_is_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(settings=settings)


def test_offline_training_refuses_an_empty_buffer() -> None:
    empty = UniformReplayConfig(capacity=100).build(make_outbox(1, 4, 1)._schema, seed=0)
    with pytest.raises(ConfigError, match="no transition"):
        DataSource(empty)


class ScriptedEvaluator:
    """Returns the given scores."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores
        self.calls = 0

    def evaluate(self, policy: Any) -> Evaluation:
        self.calls += 1
        return Evaluation(self._scores[self.calls - 1], {})

    def close(self) -> None: ...
