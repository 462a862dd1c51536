"""The best value is remembered, with the model that it is about, and no other one."""

from __future__ import annotations

import logging
import math

import pytest

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import ModelVersion
from asyncrl.learner.best_model import BestBy, BestModel


def model(opt_steps: int) -> ModelInfo:
    return ModelInfo(version=ModelVersion(opt_steps), params={})


def offered(best: BestModel, *values: float) -> list[bool]:
    """Offer a model after each value; return which were best."""
    return [
        best.offer({best.by.metric: value}, lambda n=n: model(n)) is not None
        for n, value in enumerate(values)
    ]


@pytest.mark.behaviour(number=15)
@pytest.mark.parametrize("less", [False, True])
def test_best_is_strictly_more_than_all_before(less: bool) -> None:
    """Or less, where less is better."""
    best, sign = BestModel(BestBy("eval_reward", less)), -1.0 if less else 1.0
    answers = offered(best, *(sign * value for value in (-5.0, -5.0, -6.0, 0.0, -1.0, 0.5)))
    assert answers == [True, False, False, True, False, True]
    assert (best.score, best.opt_steps) == (sign * 0.5, 5)


@pytest.mark.behaviour(number=15)
@pytest.mark.parametrize("less", [False, True])
def test_value_that_is_not_finite_is_never_best_and_warned_of_once(
    less: bool, caplog: pytest.LogCaptureFixture
) -> None:
    best = BestModel(BestBy("agent/loss", less))
    with caplog.at_level(logging.WARNING):
        values = (math.nan, math.inf, -math.inf, 1.0, math.nan)
        assert offered(best, *values) == [False, False, False, True, False]
    assert (best.score, best.opt_steps) == (1.0, 3)
    assert [r.getMessage().split(";")[0] for r in caplog.records] == ["agent/loss is nan"]


@pytest.mark.parametrize("values", [(), (3.0,)])
def test_what_was_saved_is_gone_on_from(values: tuple[float, ...]) -> None:
    before, after = BestModel(BestBy("fps")), BestModel(BestBy("fps"))
    offered(before, *values)
    after.restore(Checkpoint({}, before.meta()))
    assert (after.score, after.opt_steps) == (before.score, before.opt_steps)


def test_best_by_another_metric_starts_over_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    before, after = BestModel(BestBy("fps")), BestModel(BestBy("fps", less=True))
    offered(before, 3.0)
    with caplog.at_level(logging.WARNING):
        after.restore(Checkpoint({}, before.meta()))
    assert after.score is None
    assert "chosen by fps before, and is chosen by min:fps from now on" in caplog.text


@pytest.mark.parametrize(
    ("text", "metric", "less"),
    [
        ("eval_reward", "eval_reward", False),
        ("max:eval/return_min", "eval/return_min", False),
        ("min:agent/loss", "agent/loss", True),
        ("eval/share_of_goals", "eval/share_of_goals", False),
    ],
)
def test_setting_names_a_metric_and_which_end_of_it(text: str, metric: str, less: bool) -> None:
    by = BestBy.parse(text)
    assert (by.metric, by.less) == (metric, less)
    assert BestBy.parse(str(by)) == by


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval_rewards", r"is not the name of a recorded metric; did you mean eval_reward"),
        ("min:lag/version_mean", r"did you mean lag/versions_mean"),
        ("return_mean", r"did you mean episode/return_mean"),
        ("accuracy", r"'accuracy' is not the name of a recorded metric.*agent/<name>"),
        ("", r"must be the name of a recorded metric.*got ''"),
        ("min:", r"is not the name of a recorded metric"),
    ],
)
def test_unknown_metric_is_refused_with_similar_names(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BestBy.parse(text)


def test_evaluation_that_does_not_report_what_is_asked_for_is_refused() -> None:
    best = BestModel(BestBy("eval/share_of_goals"))
    best.expect({"eval_reward": 1.0, "eval/share_of_goals": 0.5})
    with pytest.raises(
        ConfigError, match=r"'eval/share_of_goals' names a metric that evaluations do not record"
    ):
        best.expect({"eval_reward": 1.0})
    BestModel(BestBy("fps")).expect({"eval_reward": 1.0})


def test_a_mean_of_episodes_in_a_run_without_episodes_counts_as_it_is() -> None:
    best = BestModel(BestBy("episode/return_mean"))  # recorded by a callback of an offline run
    assert offered(best, 1.0, 2.0) == [True, True]


@pytest.mark.parametrize("metric", ["episode/return_mean", "episode/success_rate", "info/gap"])
def test_mean_of_few_episodes_is_put_together_with_those_after_it(metric: str) -> None:
    best = BestModel(BestBy.parse(metric))
    scores = []
    for mean, ended in [(90.0, 1.0), (10.0, 19.0), (14.0, 20.0), (15.0, 40.0), (99.0, 41.0)]:
        best.offer({metric: mean, "episodes": ended}, lambda: model(1))
        scores.append(best.score)
    # (90 + 18 * 10 + 14) / 20, and then 20 episodes of one record
    assert scores == [None, None, pytest.approx(14.2), 15.0, 15.0]


def test_episodes_without_a_number_count_in_no_mean_of_it() -> None:
    best = BestModel(BestBy("info/gap"))
    for ended in range(30):
        assert best.offer({"episodes": float(ended)}, lambda: model(1)) is None
    assert best.offer({"info/gap": 99.0, "episodes": 30.0}, lambda: model(2)) is None
    assert best.offer({"info/gap": 1.0, "episodes": 50.0}, lambda: model(3)) is not None
    assert best.score == pytest.approx((99 + 20 * 1) / 21)


@pytest.mark.parametrize(
    ("record", "lacks"),
    [
        ({}, "finite episode/return_mean"),
        ({"episode/return_mean": 9.0, "episodes": 3.0}, "episode/return_mean of 20 episodes"),
    ],
)
def test_a_run_without_a_best_model_says_what_was_not_recorded(
    record: dict[str, float], lacks: str, caplog: pytest.LogCaptureFixture
) -> None:
    best = BestModel(BestBy("episode/return_mean"))
    best.offer(record, lambda: model(1))
    best.conclude()
    assert lacks in caplog.text
