"""Evaluations on demand: with other environments, or exploring, and without a trace in the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.env import EnvStep
from asyncrl.core.types import Array, Params
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.learner.stop_conditions import MaxEnvSteps
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.run import test_env_schedule
from tests.support.fake_envs import TellingEnv
from tests.support.fakes import ConstantConfig, CountingBatch

CONFIG = replace(test_env_schedule.CONFIG, evaluate=EvaluationConfig(interval_opt_steps=0))


class Paying(CountingBatch):
    """Pays a wage for each of the 3 steps of an episode."""

    def __init__(self, wage: float = 1.0) -> None:
        super().__init__(n_envs=2)
        self.wage = wage

    def step(self, action: Array) -> EnvStep:
        return super().step(action)._replace(reward=np.full(2, self.wage, np.float32))


def test_plain_one_counts_for_the_best_model_and_one_elsewhere_is_only_returned() -> None:
    trainer = build_trainer(CONFIG, agent=ConstantConfig(), env=Paying, stop=MaxEnvSteps(20))

    def score(**how: Any) -> float:
        evaluation = trainer.evaluate(**how)
        assert evaluation is not None
        numbers = [evaluation.record[f"eval/return_{name}"] for name in ("min", "max", "std")]
        assert numbers == [evaluation.score, evaluation.score, 0.0]
        return evaluation.score

    assert score() == 3.0, "before the run begins"
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
        assert score(env_kwargs={"wage": 9.0}) == 27.0
        assert trainer.result().best_score is None
        assert score() == 3.0
        with pytest.raises(TypeError, match="unexpected keyword argument 'pay'"):
            trainer.evaluate(env_kwargs={"pay": 1.0})
    assert trainer.result().best_score == trainer.result().last_score == 3.0
    assert score(env_kwargs={"wage": 2.0}) == 6.0, "after the run has ended"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_run_steps_all_episodes_of_an_evaluation_together(mode: Any) -> None:
    made: list[TellingEnv] = []

    def make() -> TellingEnv:
        made.append(TellingEnv())
        return made[-1]

    n_envs = {"sync": 2, "async": 1}[mode]
    config = RunConfig(mode=mode, launcher="thread", evaluate=EvaluationConfig(where="inline"))
    build_trainer(config, agent=ConstantConfig(), env=make_batch(make, n_envs)).close()
    assert len(made) == n_envs + 10, "one for each, beside those of training"


def test_run_is_the_same_whatever_is_evaluated_meanwhile_and_exploring_differs() -> None:
    scores: list[set[Any]] = [set(), set()]

    def train(evaluates: bool) -> Params:
        agent = DQNConfig(hidden=(8,), device="cpu")
        make_env = EnvConfig(id="CartPole-v1", n_envs=2).build
        stop = MaxEnvSteps(60)
        trainer = build_trainer(replace(CONFIG, seed=4), agent=agent, env=make_env, stop=stop)
        with trainer:
            for batch in trainer.batches():
                trainer.learn(batch)
                for greedy in (False, True) if evaluates else ():
                    evaluation = trainer.evaluate(greedy=greedy)
                    scores[greedy].add(evaluation.score if evaluation else None)
        return trainer.agent.model_info().params

    before, after = train(False), train(True)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    assert scores[False] != scores[True]
