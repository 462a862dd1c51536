"""Rates are those since the last report; durations are those of the whole run."""

from __future__ import annotations

import pytest

from asyncrl.learner.progress import Counts, Pace
from asyncrl.metrics.stopwatch import Stopwatch


class Measured:
    """A pace, and a hand clock that its watch reads, too."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.counts = Counts()
        self.watch = Stopwatch(lambda: self.now_s)
        self.pace = Pace(self.counts, self.watch, lambda: self.now_s)

    def lap(self, phase: str, seconds: float, opt_steps: int = 0) -> None:
        self.now_s += seconds
        self.watch.lap(phase)
        self.counts.opt_steps += opt_steps
        self.counts.env_steps += 10 * opt_steps
        self.pace.turn()


@pytest.mark.behaviour(number=55)
def test_rates_and_shares_are_those_since_the_record_before() -> None:
    measured = Measured()
    measured.pace.start(100.0)
    measured.lap("wait", 3.0)
    measured.lap("opt", 1.0, opt_steps=2)
    first = measured.pace.record(140.0)
    assert (first["opt_steps_per_sec"], first["fps"], first["samples_per_sec"]) == (0.5, 5.0, 10.0)
    assert first["samples_per_opt_steps"] == 70.0
    assert (first["share/learner_wait"], first["share/learner_opt"]) == (0.75, 0.25)
    assert first["ms/opt"] == 1000.0
    assert "ms/wait" not in first
    measured.lap("opt", 2.0, opt_steps=1)
    second = measured.pace.record(140.0)
    assert (second["opt_steps_per_sec"], second["samples_per_sec"]) == (0.5, 0.0)
    assert (second["share/learner_wait"], second["share/learner_opt"]) == (0.0, 1.0)


def test_time_is_reported_from_the_first_step_to_the_end_of_learning() -> None:
    measured = Measured()
    measured.pace.start(0.0)
    measured.lap("wait", 5.0)
    measured.lap("opt", 1.0, opt_steps=1)
    measured.lap("opt", 3.0, opt_steps=1)
    measured.lap("wait", 1.0)
    measured.pace.end()
    measured.lap("save", 8.0)
    spent = measured.pace.run_times()
    assert (spent.wall_s, spent.start_up_s, spent.end_s) == (18.0, 6.0, 8.0)
    assert spent.learner_shares == {"wait": 0.25, "opt": 0.75}


def test_time_of_training_counts_from_the_first_step_of_each_part() -> None:
    measured = Measured()
    measured.counts.env_steps = 500
    measured.pace.resume_at(100.0, 90.0)
    measured.pace.start(0.0)
    measured.counts.env_steps = 510  # a part may have counted these after its last checkpoint
    measured.lap("wait", 1.0)
    measured.counts.opt_steps += 1  # on what a checkpoint brought, while actors start
    measured.lap("wait", 7.0)
    assert measured.pace.train_s == 90.0
    measured.counts.env_steps += 1
    measured.lap("wait", 2.0)
    assert measured.pace.train_s == 90.0
    measured.lap("wait", 4.0)
    measured.pace.end()
    measured.lap("save", 5.0)
    assert (measured.pace.train_s, measured.pace.wall_s) == (94.0, 119.0)
