"""The best score is remembered, with when it was reached, and no other one."""

from __future__ import annotations

import logging
import math

import pytest

from asyncrl.best_model import BestModel
from asyncrl.checkpoint import Checkpoint


def test_best_is_strictly_greater_than_all_before() -> None:
    best = BestModel()
    scores = (-5.0, -5.0, -6.0, 0.0, -1.0, 0.5)
    answers = [best.is_better(score, opt_steps=n) for n, score in enumerate(scores)]
    assert answers == [True, False, False, True, False, True]
    assert (best.score, best.opt_steps) == (0.5, 5)


def test_score_that_is_not_finite_is_never_best_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    best = BestModel()
    with caplog.at_level(logging.WARNING):
        scores = (math.nan, math.inf, -math.inf)
        assert not any(best.is_better(score, opt_steps=1) for score in scores)
    assert best.is_better(1.0, opt_steps=2)
    assert not best.is_better(math.nan, opt_steps=3)
    assert (best.score, best.opt_steps) == (1.0, 2)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["a score is nan"]


@pytest.mark.parametrize("scores", [(), (3.0,)])
def test_what_was_saved_is_gone_on_from(scores: tuple[float, ...]) -> None:
    before, after = BestModel(), BestModel()
    for score in scores:
        before.is_better(score, opt_steps=7)
    after.restore(Checkpoint({}, before.meta()))
    assert (after.score, after.opt_steps) == (before.score, before.opt_steps)
