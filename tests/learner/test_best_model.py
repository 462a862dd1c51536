"""The best value is remembered, with the model that it is about, and no other one."""

from __future__ import annotations

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
def test_best_is_strictly_more_than_all_before(
    less: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Or less, where less is better. What is not finite is never best, and warned of once."""
    best, sign = BestModel(BestBy("eval_reward", less)), -1.0 if less else 1.0
    values = (math.nan, math.inf, -5.0, -5.0, -6.0, -math.inf, 0.5, math.nan)
    answers = offered(best, *(sign * value for value in values))
    assert [n for n, answer in enumerate(answers) if answer] == [2, 6]
    assert (best.score, best.opt_steps) == (sign * 0.5, 6)
    assert [r.getMessage().split(";")[0] for r in caplog.records] == ["eval_reward is nan"]


def test_what_was_saved_is_gone_on_from_unless_the_metric_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = BestModel(BestBy("fps"))
    for values in ((), (3.0,)):
        offered(before, *values)
        after, other = BestModel(BestBy("fps")), BestModel(BestBy("fps", less=True))
        after.restore(Checkpoint({}, before.meta()))
        assert (after.score, after.opt_steps) == (before.score, before.opt_steps)
        assert not caplog.records
    other.restore(Checkpoint({}, before.meta()))
    assert other.score is None
    assert "chosen by fps before, and is chosen by min:fps from now on" in caplog.text


@pytest.mark.parametrize(
    ("text", "metric", "less"),
    [
        ("eval_reward", "eval_reward", False),
        ("max:eval/return_min", "eval/return_min", False),
        ("min:agent/loss", "agent/loss", True),
    ],
)
def test_setting_names_a_metric_and_which_end_of_it(text: str, metric: str, less: bool) -> None:
    by = BestBy.parse(text)
    assert (by.metric, by.less) == (metric, less)
    assert BestBy.parse(str(by)) == by


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("eval_rewards", "'eval_rewards'.* eval_reward"),
        ("min:lag/version_mean", "lag/versions_mean"),
        ("return_mean", "episode/return_mean"),
        ("accuracy", "'accuracy'.*agent/<name>"),
        ("", "''"),
        ("min:", "min:"),
    ],
)
def test_unknown_metric_is_refused_with_similar_names(text: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        BestBy.parse(text)


def test_evaluation_that_does_not_report_what_is_asked_for_is_refused() -> None:
    best = BestModel(BestBy("eval/share_of_goals"))
    best.expect({"eval_reward": 1.0, "eval/share_of_goals": 0.5})
    with pytest.raises(ConfigError, match="'eval/share_of_goals'"):
        best.expect({"eval_reward": 1.0})
    BestModel(BestBy("fps")).expect({"eval_reward": 1.0})


@pytest.mark.parametrize("metric", ["episode/return_mean", "info/gap"])
def test_mean_of_few_episodes_is_put_together_with_those_after_it(
    metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    best = BestModel(BestBy.parse(metric))
    scores = []
    for mean, ended in [(90.0, 1.0), (10.0, 19.0), (14.0, 20.0), (15.0, 40.0), (99.0, 41.0)]:
        best.offer({metric: mean, "episodes": ended}, lambda: model(1))
        scores.append(best.score)
        if ended == 19:
            best.conclude()
            assert f"{metric} of 20 episodes" in caplog.text, "what a run without a best one lacked"
    # (90 + 18 * 10 + 14) / 20, and then 20 episodes of one record
    assert scores == [None, None, pytest.approx(14.2), 15.0, 15.0]


def test_episodes_without_a_number_count_in_no_mean_of_it() -> None:
    best = BestModel(BestBy("info/gap"))
    for ended in range(30):
        assert best.offer({"episodes": float(ended)}, lambda: model(1)) is None
    assert best.offer({"info/gap": 99.0, "episodes": 30.0}, lambda: model(2)) is None
    assert best.offer({"info/gap": 1.0, "episodes": 50.0}, lambda: model(3)) is not None
    assert best.score == pytest.approx((99 + 20 * 1) / 21)


def test_a_mean_of_episodes_in_a_run_without_episodes_counts_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    best = BestModel(BestBy("episode/return_mean"))  # recorded by a callback of an offline run
    best.conclude()
    assert "finite episode/return_mean" in caplog.text
    assert offered(best, 1.0, 2.0) == [True, True]
