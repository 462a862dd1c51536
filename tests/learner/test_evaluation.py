"""Each model that was asked for gets its own score, whether it takes a moment or a process."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.core.agent import Policy
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.messages import EvaluationReport
from asyncrl.learner.evaluation import BackgroundEvaluation, InlineEvaluation, Scored
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from tests.support.fakes import ConstantAgent, CountingBatch
from tests.support.sample_messages import make_evaluation, make_model


class CountingEvaluator:
    """Scores what the policy would do, and counts how often it was asked."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = False

    def evaluate(self, policy: Policy) -> Evaluation:
        self.count += 1
        score = float(policy.model_info().params["action"])
        return Evaluation(score, {"eval/length_mean": float(self.count)})

    def close(self) -> None:
        self.closed = True


def test_inline_answers_at_once_with_the_agent_unchanged() -> None:
    agent, evaluator = ConstantAgent(7), CountingEvaluator()
    site = InlineEvaluation(evaluator, agent)
    assert site.take() == []
    assert evaluator.count == 0
    model = agent.model_info()
    site.request(model)
    assert not site.busy
    assert site.take() == [Scored(model, 7.0, {"eval/length_mean": 1.0})]
    assert site.take() == [], "an answer is given once"


def test_answer_for_another_model_is_no_answer() -> None:
    """A restarted evaluator may score once more what it had scored before."""
    answers: list[EvaluationReport] = []
    proxy = SimpleNamespace(take_evaluations=lambda: [answers.pop() for _ in answers[:]])
    site = BackgroundEvaluation(Mock(), cast(ReplayBufferProxy, proxy))

    def scores(*versions: int) -> list[float]:
        answers.extend(make_evaluation(version=n, score=float(n)) for n in versions)
        return [scored.score for scored in site.take()]

    assert scores(3) == [], "nothing was asked"
    site.request(make_model(5))
    assert scores(3) == []
    assert site.busy
    assert scores(5, 5, 3) == [5.0], "and the same one counts once"
    assert not site.busy


@pytest.mark.behaviour(number=19)
@pytest.mark.parametrize("number", [3.0, np.float32(3.0), torch.tensor(3.0), np.array(3.0)])
def test_custom_evaluator_needs_no_stochastic_option(number: Any) -> None:
    """Its numbers become floats: a checkpoint holds the best score as JSON."""

    class Shortest:
        def evaluate(self, policy: Policy) -> Evaluation:
            return Evaluation(number, {"eval/own": number})

        def close(self) -> None: ...

    site = InlineEvaluation(Shortest(), ConstantAgent())
    site.request(make_model(5))
    (scored,) = site.take()
    assert json.dumps([scored.score, scored.record]) == '[3.0, {"eval/own": 3.0}]'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3.0, r"`evaluate` of Wrong .* 3\.0"),
        ((3.0, None), r"\(3\.0, None\)"),
        ((None, {}), "eval_reward .* None"),
        ((3.0, {"eval/own": "x"}), "eval/own .* 'x'"),
    ],
)
def test_wrong_answer_of_an_evaluator_is_named(answer: Any, words: str) -> None:
    class Wrong:
        def evaluate(self, policy: Policy) -> Any:
            return answer

        def close(self) -> None: ...

    with pytest.raises(ConfigError, match=words):
        InlineEvaluation(Wrong(), ConstantAgent()).request(make_model(5))


def test_policy_in_training_is_not_to_explore_in_between() -> None:
    evaluator = EpisodeEvaluator(CountingBatch(), EpisodeEvaluatorConfig(stochastic=True), seed=0)
    with pytest.raises(ConfigError, match="evaluate in the background, or after training"):
        InlineEvaluation(evaluator, ConstantAgent())
