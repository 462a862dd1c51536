"""What is due is done, once, and no later than it can be; the result says how a run ended."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.checkpoint.checkpoint import PASSING, Checkpoint, Checkpointer
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.learner.evaluation import Scored
from asyncrl.learner.progress import Counts
from asyncrl.learner.run_services import RunServices
from asyncrl.learner.stop_conditions import (
    AllOf,
    AnyOf,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
)
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.metrics import describe
from asyncrl.metrics.stopwatch import Stopwatch
from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.memory import MemoryRecorder
from tests.support.fakes import ConstantAgent, DirectSaver, ThriftyAgent
from tests.support.scale import examples
from tests.support.services import services_config


class FakeSite:
    """Answers at once with the next of its scores, or, if `slow`, when the test says so."""

    def __init__(self, *scores: float, slow: bool = False) -> None:
        self.scores = list(scores)
        self.slow = slow
        self.requested: list[int] = []
        self.pending: ModelInfo | None = None
        self.answers: list[Scored] = []

    @property
    def busy(self) -> bool:
        return self.pending is not None

    def request(self, model: ModelInfo) -> None:
        assert not self.busy, "one at a time"
        self.requested.append(int(model.version))
        self.pending = model
        if not self.slow:
            self.answer()

    def answer(self) -> None:
        assert self.pending is not None
        score = self.scores.pop(0) if self.scores else 0.0
        self.answers.append(Scored(self.pending, score, {"eval/length_mean": 5.0}))
        self.pending = None

    def take(self) -> list[Scored]:
        answers, self.answers = self.answers, []
        return answers


class FakeCheckpointer(Checkpointer):
    """Keeps in memory what it should save."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.saved: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []

    def save(self, name: str, groups: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
        self.saved.append((name, groups, meta))
        return Path(name)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.saved]

    def load(self, name: str, *, mapped: Collection[str] = ()) -> Checkpoint:
        return next(Checkpoint(g, meta) for n, g, meta in reversed(self.saved) if n == name)


class Run:
    """Services, a manual clock and all that they talk to."""

    def __init__(
        self,
        *scores: float,
        slow: bool = False,
        stop: StopCondition | None = None,
        setup: Setup | None = None,
        **config: Any,
    ) -> None:
        off = {
            "evaluate_interval_opt_steps": 0,
            "record_interval_s": 0,
            "save_interval_opt_steps": 0,
            "save_interval_s": 0,
        }
        self.now_s = 100.0
        self.agent = ThriftyAgent()
        self.site = FakeSite(*scores, slow=slow)
        self.recorder = MemoryRecorder()
        self.checkpointer = FakeCheckpointer()
        self.interrupter = Interrupter()
        self.asked = 0
        self.services = RunServices(
            self.agent,
            services_config(**(off | config)),
            self.interrupter,
            evaluation=self.site,
            recorder=self.recorder,
            checkpointer=self.checkpointer,
            stop=stop,
            setup=setup,
            clock=lambda: self.now_s,
        )
        self.services._saver = DirectSaver(self.checkpointer, self.interrupter, self.agent)
        self.services.start({"seed": 1}, [self.stored])

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint, with other settings."""
        self.services.restore(checkpoint)
        self.services.start({"seed": 2}, [self.stored])

    def stored(self) -> dict[str, float]:
        return {"samples_total": 2.0 * self.services.counts.env_steps}

    def agent_record(self) -> dict[str, float]:
        self.asked += 1
        return {"agent/loss": 0.5}

    def turn(self, opt_steps: int = 1, seconds: float = 0.0) -> None:
        """Optimise so often, let time pass, and keep the services."""
        self.agent.opt_steps += opt_steps
        self.services.counts.opt_steps += opt_steps
        self.services.counts.env_steps += 10 * opt_steps
        self.now_s += seconds
        self.services.turn(self.agent_record)

    def finish(self) -> TrainResult:
        self.services.finish()
        self.services.close(self.agent_record)
        return self.services.result()

    def recorded(self, name: str) -> list[float]:
        return [record[name] for record in self.recorder.records if name in record]


def test_evaluation_takes_place_at_its_intervals() -> None:
    run = Run(evaluate_interval_opt_steps=3)
    for _ in range(10):
        run.turn()
    assert run.site.requested == [3, 6, 9]
    run = Run(evaluate_interval_opt_steps=3)
    for _ in range(5):
        run.turn(opt_steps=4)
    assert run.site.requested == [4, 8, 12, 16, 20], "steps may jump over the multiples"


def test_evaluation_that_comes_due_during_another_is_not_lost() -> None:
    run = Run(slow=True, evaluate_interval_opt_steps=2)
    for _ in range(5):
        run.turn()
    assert run.site.requested == [2]
    run.site.answer()
    run.turn()
    assert run.site.requested == [2, 6], "with the newest model, as soon as the other has ended"
    run.site.answer()
    run.turn()
    assert run.site.requested == [2, 6], "what came due twice is done once"
    run.turn()
    assert run.site.requested == [2, 6, 8]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30), st.integers(1, 5))
@settings(max_examples=examples(150), deadline=None)
def test_every_due_time_is_followed_by_an_evaluation(
    turns: list[tuple[int, bool]], interval: int
) -> None:
    run = Run(slow=True, evaluate_interval_opt_steps=interval)
    due: list[int] = []
    for opt_steps, answered in turns:
        before = run.services.counts.opt_steps
        if answered and run.site.busy:
            run.site.answer()
        run.turn(opt_steps)
        due += [n for n in range(before + 1, before + opt_steps + 1) if n % interval == 0]
        followed = [n for n in due if any(version >= n for version in run.site.requested)]
        assert followed == due or run.site.busy
    if run.site.busy:
        run.site.answer()
        run.turn(0)
    assert all(any(version >= n for version in run.site.requested) for n in due)
    assert len(run.site.requested) <= len(due)


def test_intervals_of_0_are_off() -> None:
    run = Run(1.0)
    for _ in range(50):
        run.turn(seconds=10.0)
    assert run.site.requested == []
    assert run.checkpointer.names() == []
    assert run.recorder.records == []
    assert run.asked == 0
    run.finish()
    assert run.site.requested == [], "also at the end"
    assert len(run.recorder.records) == 1, "the last record is always written"


def test_stop_condition_that_returns_true_has_a_reason_in_words() -> None:
    class Solved(MaxOptSteps):
        def update(self, record: Record) -> Any:
            return super().update(record) is not None

    run = Run(stop=Solved(3))
    run.turn(3)
    assert run.finish().stop_reason == "Solved returned True"


def test_services_without_a_recorder_or_evaluation() -> None:
    agent = ConstantAgent()
    services = RunServices(agent, services_config(record_interval_s=0.0), Interrupter())
    services.start({}, [])
    services.counts.opt_steps = 10_000
    services.turn(dict)
    services.finish()
    services.save()
    services.close(dict)
    assert services.result().stop_reason == "the loop ended"


def test_best_is_saved_on_a_strictly_better_finite_score_only() -> None:
    scores = (math.nan, -math.inf, 5.0, 5.0, 4.0, math.inf, 6.0, math.nan)
    run = Run(*scores, evaluate_interval_opt_steps=1)
    for _ in scores:
        run.turn()
    assert run.checkpointer.names() == ["best", "best"]
    metas = [meta for _, _, meta in run.checkpointer.saved]
    assert metas == [
        {"opt_steps": 3, "env_steps": 30, "best_by": "eval_reward", "score": 5.0},
        {"opt_steps": 7, "env_steps": 70, "best_by": "eval_reward", "score": 6.0},
    ]
    result = run.finish()
    assert (result.best_score, result.best_opt_steps) == (6.0, 7)
    assert math.isnan(result.last_score or 0.0)
    assert run.recorded("eval/best") == [5.0, 5.0, 5.0, 5.0, 6.0, 6.0]


def test_best_by_a_recorded_metric_is_the_learners_model_of_that_moment() -> None:
    run = Run(99.0, save_best_by="min:samples_total", record_interval_opt_steps=2)
    received = iter([0.0, math.nan, 8.0, 8.0, 3.0, 5.0])  # at the start, and then at each record
    run.services.start({}, [lambda: {"samples_total": next(received)}])
    for n in range(10):
        run.agent.params["action"][()] = n
        run.turn()
    saved = [(groups["model"]["action"], meta) for _, groups, meta in run.checkpointer.saved]
    assert [meta["score"] for _, meta in saved] == [8.0, 3.0]
    assert [(int(action), meta["opt_steps"]) for action, meta in saved] == [(3, 4), (7, 8)]
    result = run.services.result()
    assert (result.best_by, result.best_score) == ("min:samples_total", 3.0)
    assert result.best_opt_steps == 8


def test_last_record_counts_for_the_best_model_too() -> None:
    run = Run(save_best_by="samples_total", record_interval_opt_steps=4)
    received = iter([0.0, 3.0, 5.0])  # at the start, at a record, and when the run has ended
    run.services.start({}, [lambda: {"samples_total": next(received)}])
    for n in range(7):
        run.agent.params["action"][()] = n
        run.turn()
    result = run.finish()
    assert (result.best_score, result.best_opt_steps) == (5.0, 7)
    name, groups, meta = run.checkpointer.saved[-1]
    assert (name, int(groups["model"]["action"])) == ("best", 6)
    assert (meta["score"], meta["opt_steps"], meta["env_steps"]) == (5.0, 7, 70)


def test_lucky_episode_does_not_make_the_best_model() -> None:
    run = Run(save_best_by="episode/return_mean", record_interval_s=1.0)
    names = ("episode/return_mean", "episodes")
    # At the start, before learning, in two records, and when the run has ended.
    received = iter([(0.0, 0.0), (5.0, 400.0), (9.0, 401.0), (3.0, 430.0), (9.0, 431.0)])
    run.services.start({}, [lambda: dict(zip(names, next(received), strict=True))])
    run.turn(0, seconds=1.0)
    run.turn(seconds=1.0)
    assert run.services.result().best_score is None
    run.turn(seconds=1.0)
    assert run.finish().best_score == pytest.approx((9 + 29 * 3) / 30)


@pytest.mark.fault("F21")
def test_episodes_of_before_it_was_resumed_are_in_no_mean() -> None:
    config = {"save_best_by": "episode/return_mean", "record_interval_opt_steps": 1}
    resumed = Run(**config)
    resumed.services.restore(saved_after(3, **config))
    received = iter([(0.0, 500.0), (9.0, 501.0), (3.0, 530.0), (3.0, 530.0)])
    names = ("episode/return_mean", "episodes")
    resumed.services.start({}, [lambda: dict(zip(names, next(received), strict=True))])
    resumed.turn()
    assert resumed.services.result().best_score is None, "one lucky episode"
    resumed.turn()
    assert resumed.finish().best_score == pytest.approx((9 + 29 * 3) / 30)


def test_metric_only_in_the_last_record_causes_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(save_best_by="samples_total", record_interval_opt_steps=100)
    run.turn(7)
    assert run.finish().best_opt_steps == 7
    assert not caplog.records


def test_record_of_a_run_that_failed_makes_no_model_the_best() -> None:
    run = Run(save_best_by="samples_total", record_interval_opt_steps=4)
    run.turn(7)
    run.interrupter.fail(ValueError("x"))
    run.services.close(run.agent_record)
    assert len(run.checkpointer.saved) == 1
    assert run.services.result().best_opt_steps == 7


def test_best_by_another_number_of_evaluations_keeps_the_model_that_was_evaluated() -> None:
    run = Run(9.0, 1.0, save_best_by="min:eval_reward", evaluate_interval_opt_steps=1)
    run.turn()
    run.turn()
    assert [meta["score"] for _, _, meta in run.checkpointer.saved] == [9.0, 1.0]
    assert run.recorded("eval/best") == [], "which is of the most reward"
    assert run.services.result().best_score == 1.0


def test_evaluation_without_the_number_that_is_asked_for_ends_the_run() -> None:
    run = Run(9.0, save_best_by="eval/return_median", evaluate_interval_opt_steps=1)
    with pytest.raises(ConfigError, match=r"record; they record eval/length_mean, .*eval_reward"):
        run.turn()


def test_nothing_is_best_before_the_first_optimisation_step() -> None:
    run = Run(save_best_by="env_steps", record_interval_s=1.0)
    run.turn(0, seconds=1.0)
    assert run.recorded("env_steps") != []
    assert run.checkpointer.saved == []


@pytest.mark.fault("F21")
def test_best_by_another_metric_continues_when_resumed() -> None:
    config = {"save_best_by": "min:opt_steps", "record_interval_opt_steps": 1}
    before, resumed = Run(**config), Run(**config)
    before.turn()
    resumed.checkpointer.saved += before.checkpointer.saved
    resumed.resume(saved_after(3, **config))
    resumed.turn()
    assert resumed.checkpointer.names() == ["best"], "1 step is less than 4"
    assert resumed.finish().best_score == 1.0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"save_best_by": "episode/return"},
            r"save\.best_by='episode/return' .*episode/return_mean",
        ),
        (
            {"save_best_by": "fps", "record_interval_s": 0.0},
            r"needs records, but they are off",
        ),
    ],
)
def test_metric_of_the_best_model_is_checked(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        services_config(**config)


def test_best_is_the_model_that_was_evaluated_not_the_newest() -> None:
    run = Run(3.0, slow=True, evaluate_interval_opt_steps=2)
    run.agent.params["action"][()] = 4
    run.turn(2)
    run.agent.params["action"][()] = 9
    run.site.answer()
    run.turn(1)
    ((name, groups, meta),) = run.checkpointer.saved
    assert (name, meta["opt_steps"]) == ("best", 2)
    assert set(groups) == {"model"}
    assert groups["model"]["action"] == 4
    (record,) = [record for record in run.recorder.records if "eval_reward" in record]
    assert (record["opt_steps"], record["eval/model_version"]) == (3.0, 2.0)


def test_evaluation_is_recorded_with_where_the_run_was() -> None:
    run = Run(7.0, evaluate_interval_opt_steps=2)
    run.turn(2, seconds=1.5)
    (record,) = run.recorder.records
    assert record == {
        "env_steps": 20.0,
        "opt_steps": 2.0,
        "wall_s": 1.5,
        "train_s": 0.0,
        "eval_reward": 7.0,
        "eval/length_mean": 5.0,
        "eval/model_version": 2.0,
        "eval/best": 7.0,
    }


def test_run_without_a_finite_score_has_no_best() -> None:
    run = Run(math.nan, evaluate_interval_opt_steps=1)
    run.turn()
    run.services.save()
    ((_, _, meta),) = run.checkpointer.saved
    assert meta["best_score"] is None
    result = run.finish()
    assert (result.best_score, result.best_opt_steps) == (None, None)


def test_checkpoints_are_saved_at_their_intervals_with_what_is_needed_to_continue() -> None:
    run = Run(3.0, save_interval_opt_steps=4, evaluate_interval_opt_steps=4)
    for _ in range(9):
        run.turn()
    saved = [entry for entry in run.checkpointer.saved if entry[0] != "best"]
    assert [name for name, _, _ in saved] == ["4", "8"]
    _, groups, meta = saved[1]
    assert meta == {
        "opt_steps": 8,
        "env_steps": 80,
        "wall_s": 0.0,
        "train_s": 0.0,
        "best_by": "eval_reward",
        "best_score": 3.0,
        "best_opt_steps": 4,
        "stop_bar": {},
        "config": {"seed": 1},
        "run": {},
    }
    assert groups["agent"]["opt_steps"] == 8
    assert set(groups["model"]) == {"action"}


def test_checkpoints_by_time_come_early_and_take_a_small_part_of_it() -> None:
    run = Run(save_interval_s=60.0, save_interval_opt_steps=100)
    saver = run.services._saver
    assert saver is not None
    run.turn(opt_steps=0, seconds=500.0)
    assert run.checkpointer.names() == [], "there is nothing to save yet"
    for _ in range(8):
        run.turn(seconds=4.0)
    assert run.checkpointer.names() == ["5"], "asked for 12 s after the first step, at step 4"
    run.turn(opt_steps=92)
    saver.took_s = 2.0
    for _ in range(40):
        run.turn(seconds=4.0)
    assert run.checkpointer.names() == ["5", "100", "126"], "100 s after one that took 2 s"
    passing = [PASSING in meta for _, _, meta in run.checkpointer.saved]
    assert passing == [True, False, True]


def test_memory_for_a_checkpoint_is_there_before_the_first_is_due() -> None:
    run = Run(save_interval_opt_steps=4)
    assert run.agent.spare == {}
    run.turn(opt_steps=0)
    assert run.agent.spare == {}, "an optimiser has no state before its first step"
    run.turn()
    room = run.agent.spare["action"]
    run.turn(opt_steps=3)
    assert run.checkpointer.saved[-1][1]["agent"]["action"] is room
    assert room == run.agent.params["action"]


def saved_after(turns: int, *scores: float, **config: Any) -> Checkpoint:
    """Return the checkpoint of a run of `turns` turns of 5 s each."""
    run = Run(*scores, **config)
    for _ in range(turns):
        run.turn(seconds=5.0)
    run.services.save()
    _, groups, meta = run.checkpointer.saved[-1]
    return Checkpoint(groups, meta)


@pytest.mark.fault("F21")
def test_resumable_recorder_is_called_with_the_position() -> None:
    class ResumedRecorder(MemoryRecorder):
        def __init__(self) -> None:
            super().__init__()
            self.received: list[tuple[int, int]] = []

        def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
            assert not self.records
            self.received.append((env_steps, opt_steps))

    run = Run()
    run.services._recorder = recorder = ResumedRecorder()
    run.services.start({}, [run.stored])
    assert recorder.received == []
    run.resume(saved_after(6))
    assert recorder.received == [(60, 6)]


@pytest.mark.fault("F21")
def test_resumed_run_continues_counting_where_the_other_was() -> None:
    resumed = Run(save_interval_opt_steps=4, record_interval_opt_steps=1)
    resumed.resume(saved_after(6))
    assert resumed.services.counts == Counts(env_steps=60, opt_steps=6)
    assert resumed.agent.opt_steps == 6, "the agent continues, too"
    assert resumed.agent.params["action"] == saved_after(6).groups["agent"]["action"]
    assert resumed.services._pace.wall_s == 30.0
    resumed.turn(seconds=2.0)
    assert resumed.services._pace.wall_s == 32.0
    assert resumed.checkpointer.names() == [], "4 steps are long over, and 8 not yet reached"
    resumed.turn(seconds=2.0)
    assert resumed.checkpointer.names() == ["8"]
    assert resumed.checkpointer.saved[0][2]["wall_s"] == 34.0
    assert resumed.recorded("fps") == [5.0, 5.0], "of this part of the run alone"
    assert resumed.recorded("samples_per_sec") == [10.0, 10.0]
    assert resumed.recorded("wall_s") == [32.0, 34.0]


@pytest.mark.fault("F21")
@pytest.mark.parametrize(("score", "best", "steps"), [(6.0, 7.0, 1), (7.0, 7.0, 1), (8.0, 8.0, 4)])
def test_best_model_of_before_stays_until_a_better_one_comes(
    score: float, best: float, steps: int
) -> None:
    before, resumed = (
        Run(7.0, evaluate_interval_opt_steps=1),
        Run(score, evaluate_interval_opt_steps=4),
    )
    before.turn()
    resumed.checkpointer.saved += before.checkpointer.saved
    resumed.resume(saved_after(3, 7.0, 2.0, 3.0, evaluate_interval_opt_steps=1))
    resumed.turn()
    assert resumed.checkpointer.names() == ["best"] * (1 + (score > 7.0))
    result = resumed.finish()
    assert (result.best_score, result.best_opt_steps) == (best, steps)


@pytest.mark.fault("F21")
@pytest.mark.parametrize(("score", "best", "steps"), [(8.0, 9.0, 5), (9.5, 9.5, 4)])
def test_best_model_that_was_saved_after_the_checkpoint_stays_until_a_better_one_comes(
    score: float, best: float, steps: int
) -> None:
    killed, resumed = (
        Run(9.0, evaluate_interval_opt_steps=5),
        Run(score, evaluate_interval_opt_steps=4),
    )
    killed.turn(5)
    resumed.checkpointer.saved += killed.checkpointer.saved
    resumed.resume(saved_after(3, 7.0, evaluate_interval_opt_steps=1))
    resumed.turn()
    assert resumed.checkpointer.names() == ["best"] * (1 + (score > 9.0))
    result = resumed.finish()
    assert (result.best_score, result.best_opt_steps) == (best, steps)


@pytest.mark.fault("F21")
def test_run_that_had_no_best_model_has_none_when_resumed() -> None:
    resumed = Run(-100.0, evaluate_interval_opt_steps=4)
    resumed.resume(saved_after(3))
    assert resumed.services.result().best_score is None
    resumed.turn()
    assert resumed.finish().best_score == -100.0


@pytest.mark.fault("F21")
@pytest.mark.parametrize(
    ("stop", "ended"),
    [
        (MaxOptSteps(3), True),
        (MaxOptSteps(4), False),
        (MaxSeconds(5.0), True),
        (ReachesUpperBound("samples_total", 50.0), True),
        (ReachesUpperBound("eval_reward", 0.0), False),
        (None, False),
    ],
)
def test_run_that_is_resumed_at_its_end_has_ended(
    stop: StopCondition | None, ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    resumed = Run(stop=stop)
    resumed.services.restore(saved_after(3))
    assert resumed.services.has_ended({"samples_total": 60.0}) == ended
    assert resumed.interrupter.is_set == ended
    assert ("nothing is left to train: " in caplog.text) == ended


def test_run_that_has_reached_the_bar_has_ended_until_the_bar_is_raised() -> None:
    stop = AnyOf(ReachesUpperBound("eval_reward", 10.0), MaxOptSteps(9))
    run = Run(12.0, 3.0, stop=stop, evaluate_interval_opt_steps=3)
    for _ in range(4):
        run.turn(seconds=5.0)
    assert run.finish().last_score == 3.0, "the last model is worse"
    run.services.save()
    _, groups, meta = run.checkpointer.saved[-1]
    for bound, ended in ((10.0, True), (13.0, False)):
        resumed = Run(stop=AnyOf(ReachesUpperBound("eval_reward", bound), MaxOptSteps(9)))
        resumed.services.restore(Checkpoint(groups, meta))
        assert resumed.services.has_ended({}) == ended
        assert resumed.services.result().seconds_to_stop_bar == (15.0 if ended else None)


def test_run_that_begins_has_not_ended() -> None:
    run = Run(stop=ReachesUpperBound("samples_total", 0.0))
    assert not run.services.has_ended({"samples_total": 0.0})


@pytest.mark.fault("F15")
def test_one_request_is_one_checkpoint() -> None:
    run = Run()
    run.interrupter.save_requested = True
    for _ in range(3):
        run.turn()
    assert run.checkpointer.names() == ["1"]


def test_end_waits_for_the_disk_as_long_as_it_may() -> None:
    waited: list[float] = []

    class Waits(DirectSaver):
        def close(self, timeout_s: float) -> None:
            waited.append(timeout_s)

    run = Run(save_timeout_s=7.0)
    run.services._saver = Waits(run.checkpointer, run.interrupter)
    run.services.close_saver()
    assert waited == [7.0]


def test_settings_are_made_plain_once_for_all_checkpoints() -> None:
    class Shown:
        asked = 0

        def __str__(self) -> str:
            Shown.asked += 1
            return "shown"

    run = Run(save_interval_opt_steps=1)
    run.services.start({"env": Shown(), "hidden": (64, 32)}, [])
    for _ in range(3):
        run.turn()
    saved = [meta["config"] for _, _, meta in run.checkpointer.saved]
    assert saved == [{"env": "shown", "hidden": [64, 32]}] * 3
    assert Shown.asked == 1


def test_records_come_by_time_and_by_steps() -> None:
    run = Run(record_interval_s=2.0)
    for _ in range(10):
        run.turn(seconds=0.5)
    assert run.recorded("wall_s") == [2.0, 4.0]
    run = Run(record_interval_opt_steps=4)
    for _ in range(10):
        run.turn(seconds=0.5)
    assert run.recorded("opt_steps") == [4.0, 8.0]
    run = Run(record_interval_s=2.0, record_interval_opt_steps=4)
    for _ in range(8):
        run.turn(seconds=0.5)
    assert run.recorded("opt_steps") == [4.0, 8.0], "both at once is one record"


def test_agent_is_asked_only_when_something_is_recorded() -> None:
    run = Run(record_interval_opt_steps=5)
    for _ in range(12):
        run.turn()
    assert run.asked == 2
    assert run.recorded("agent/loss") == [0.5, 0.5]


def test_rates_are_since_the_record_before() -> None:
    run = Run(record_interval_s=2.0)
    run.turn(4, seconds=2.0)
    run.turn(1, seconds=2.0)
    run.turn(0, seconds=4.0)
    assert run.recorded("fps") == [20.0, 5.0, 0.0]
    assert run.recorded("opt_steps_per_sec") == [2.0, 0.5, 0.0]
    assert run.recorded("samples_per_sec") == [40.0, 10.0, 0.0]
    assert run.recorded("samples_per_opt_steps") == [20.0, 20.0, 20.0]


@pytest.mark.parametrize(("seconds", "received"), [(0.19, False), (0.21, True)])
def test_last_record_has_no_rates_of_a_very_short_interval(seconds: float, received: bool) -> None:
    run = Run(record_interval_s=2.0)
    run.turn(4, seconds=2.0)
    run.turn(1, seconds=seconds)
    run.finish()
    last = run.recorder.records[-1]
    assert all(
        (name in last) is received for name in ("fps", "opt_steps_per_sec", "samples_per_sec")
    )
    assert last["samples_per_opt_steps"] == 20.0


def test_rates_of_the_only_record_are_reported() -> None:
    run = Run()
    run.turn(4, seconds=2.0)
    run.finish()
    assert run.recorded("opt_steps_per_sec") == [2.0]


def test_shares_of_the_learners_time_add_up() -> None:
    run = Run(record_interval_opt_steps=1)
    run.services.watch.lap("opt")
    run.services.watch.lap("wait")
    run.turn()
    (record,) = run.recorder.records
    shares = {name: value for name, value in record.items() if name.startswith("share/")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {"share/learner_opt", "share/learner_wait"} <= set(shares)
    assert "ms/opt" in record
    assert "ms/wait" not in record


def test_metrics_are_known_and_plain_numbers() -> None:
    run = Run(1.0, record_interval_opt_steps=1, evaluate_interval_opt_steps=1)
    run.services.watch.lap("opt")
    run.turn()
    for record in run.recorder.records:
        for name, value in record.items():
            assert describe(name) is not None, name
            assert type(value) is float


def test_limit_stops_the_run_with_its_reason() -> None:
    run = Run(stop=MaxOptSteps(3))
    run.turn()
    run.turn()
    assert not run.interrupter.is_set
    run.turn()
    assert run.interrupter.reason == "3 optimisation steps are done"
    result = run.finish()
    assert result.stop_reason == "3 optimisation steps are done"
    assert result.seconds_to_stop_bar is None


def test_metric_of_a_record_may_stop_the_run() -> None:
    run = Run(stop=ReachesUpperBound("samples_total", 50), record_interval_opt_steps=2)
    run.turn()
    run.turn()
    assert not run.interrupter.is_set, "40 samples so far"
    run.turn()
    assert not run.interrupter.is_set, "nothing was recorded"
    run.turn()
    assert run.interrupter.reason == "samples_total reached 50 (80)"
    assert run.finish().seconds_to_stop_bar is None


def test_seconds_to_the_bar_are_those_until_an_evaluation_reached_it() -> None:
    stop = AnyOf(MaxSeconds(100), ReachesUpperBound("eval_reward", 10))
    run = Run(
        3.0,
        12.0,
        slow=True,
        stop=stop,
        evaluate_interval_opt_steps=2,
        evaluate_final_timeout_s=0,
    )
    run.turn(2, seconds=1.0)
    run.site.answer()
    run.turn(2, seconds=1.0)
    run.turn(1, seconds=5.0)
    assert not run.interrupter.is_set
    run.site.answer()
    run.turn(1, seconds=0.5)
    assert run.interrupter.reason == "an evaluation reached 10 (12)"
    run.now_s += 30.0
    result = run.finish()
    assert result.seconds_to_stop_bar == 7.5
    assert result.wall_s == 37.5


@pytest.mark.parametrize("limit", [MaxOptSteps(4), MaxSeconds(1.0)])
def test_limit_that_is_noticed_in_an_evaluation_is_not_the_bar(limit: StopCondition) -> None:
    stop = AnyOf(limit, ReachesUpperBound("eval_reward", 10))
    run = Run(1.0, 2.0, stop=stop, evaluate_interval_opt_steps=2)
    run.turn(0)
    run.turn(2, seconds=1.0)
    run.turn(2, seconds=1.0)
    result = run.finish()
    assert result.stop_reason.endswith(("optimisation steps are done", "1 s of training are over"))
    assert result.last_score == 2.0
    assert result.seconds_to_stop_bar is None


def test_bar_may_depend_on_where_the_run_is() -> None:
    stop = AllOf(MaxOptSteps(4), ReachesUpperBound("eval_reward", 10))
    run = Run(20.0, 20.0, stop=stop, evaluate_interval_opt_steps=2)
    run.turn(2, seconds=1.0)
    assert not run.interrupter.is_set
    run.turn(1, seconds=1.0)
    assert not run.interrupter.is_set
    run.turn(1, seconds=1.0)
    assert (
        run.interrupter.reason == "4 optimisation steps are done and an evaluation reached 10 (20)"
    )


def test_start_up_ends_with_the_first_optimisation_step() -> None:
    run = Run()
    run.turn(0, seconds=2.0)
    run.turn(1, seconds=0.5)
    run.turn(1, seconds=4.0)
    assert run.finish().start_up_s == 2.5


def test_shares_are_of_the_time_from_the_first_step_to_the_last_one() -> None:
    run = Run()
    run.services.watch = run.services._pace._watch = Stopwatch(lambda: run.now_s)

    def lap(phase: str, seconds: float) -> None:
        run.now_s += seconds
        run.services.watch.lap(phase)

    lap("wait", 20.0)
    lap("opt", 0.5)
    run.turn(1)
    lap("wait", 1.0)
    lap("opt", 3.0)
    run.turn(1)
    run.services.finish()
    lap("eval", 7.0)
    lap("save", 9.0)
    result = run.services.result()
    assert result.learner_shares == {"wait": 0.25, "opt": 0.75, "other": 0.0}
    assert (result.start_up_s, result.end_s, result.wall_s) == (20.5, 16.0, 40.5)


def test_run_without_an_optimisation_step_was_all_start_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run()
    run.services.warm_up_left = lambda: 40
    run.turn(0, seconds=2.0)
    result = run.finish()
    assert "the run has learned nothing: the loop ended, and 0 environment steps" in caplog.text
    assert "the warm-up needs 40 more" in caplog.text
    assert result.start_up_s == result.wall_s == 2.0
    assert result.verdict.kind == "too-early"


def test_result_knows_how_the_run_was_set_up_and_how_busy_the_machine_was() -> None:
    setup = Setup(actors=3, envs_per_actor=5, samples_per_insert=2.0, cores=4)
    result = Run(setup=setup).finish()
    assert result.setup == setup
    assert result.cpu_percent >= 0.0
    assert 0.0 <= result.machine_cpu_percent <= 100.0


def test_samples_per_insert_are_those_of_the_last_record() -> None:
    run = Run(record_interval_opt_steps=1)
    ratios = iter([0.0, 3.0, 3.5, 3.75])  # at the start, and then at each record
    run.services.start({}, [lambda: {"samples_per_insert": next(ratios)}])
    run.turn()
    run.turn()
    assert run.finish().samples_per_insert == 3.75


def test_first_reason_stays() -> None:
    run = Run(99.0, stop=ReachesUpperBound("eval_reward", 10), evaluate_interval_opt_steps=1)
    run.interrupter.stop("enough")
    run.turn()
    result = run.finish()
    assert result.stop_reason == "enough"
    assert result.seconds_to_stop_bar is None


@pytest.mark.parametrize("more", [0, 1])
def test_last_model_is_evaluated_once_and_the_wait_is_logged(
    more: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = Run(1.0, evaluate_interval_opt_steps=4, evaluate_final_timeout_s=7.0)
    run.turn(4)
    run.turn(more)
    run.finish()
    assert run.site.requested == [4, 5][: 1 + more]
    assert ("evaluation of the last model, at most 7 s" in caplog.text) == bool(more)


@pytest.mark.parametrize("config", [{"evaluate_final_timeout_s": 0}, {}])
def test_final_evaluation_may_be_off_or_have_nothing_to_do(config: dict[str, Any]) -> None:
    run = Run(evaluate_interval_opt_steps=4, **config)
    run.turn(3 if config else 0)
    run.finish()
    assert run.site.requested == []


def test_evaluation_that_is_under_way_at_the_end_is_awaited() -> None:
    class Answering(FakeSite):
        """Answers when it is asked for the third time."""

        asked = 0

        def take(self) -> list[Scored]:
            self.asked += 1
            if self.busy and self.asked % 3 == 0:
                self.answer()
            return super().take()

    run = Run()
    site = Answering(3.0, 4.0, slow=True)
    run.services._evaluation = site
    run.services._config = services_config(evaluate_interval_opt_steps=2)
    run.services._eval_due = True
    run.turn(2)
    run.turn(1)
    result = run.finish()
    assert site.requested == [2, 3]
    assert (result.last_score, result.best_score) == (4.0, 4.0)


def test_endless_evaluation_does_not_delay_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(slow=True, evaluate_interval_opt_steps=2, evaluate_final_timeout_s=30.0)
    run.turn(2)
    run.turn(1)
    original = run.site.take

    def take() -> list[Scored]:
        run.now_s += 1.0
        return original()

    run.site.take = take  # type: ignore[method-assign]
    before = run.now_s
    result = run.finish()
    assert 30.0 <= run.now_s - before <= 35.0
    assert run.site.requested == [2], "one at a time, also at the end"
    assert result.last_score is None
    assert "longer than evaluate.final_timeout_s=30 and was abandoned" in caplog.text


def test_evaluation_on_demand_waits_for_the_one_before_and_for_its_own_score() -> None:
    run = Run(1.0, 2.0, slow=True, evaluate_interval_opt_steps=2)
    run.turn(2)
    run.turn(1)
    original = run.site.take

    def take() -> list[Scored]:
        run.now_s += 1.0
        if run.site.busy and run.now_s > 103.0:
            run.site.answer()
        return original()

    run.site.take = take  # type: ignore[method-assign]
    assert run.services.evaluate(30.0)[0] == 2.0  # type: ignore[index]
    assert run.site.requested == [2, 3]
    assert run.services.evaluate(30.0)[0] == 2.0, "of the same model"  # type: ignore[index]
    assert run.site.requested == [2, 3]


def test_evaluation_on_demand_that_takes_too_long_is_recorded_all_the_same() -> None:
    run = Run(5.0, slow=True)
    run.turn(2)
    assert run.services.evaluate(0.0) is None
    run.site.answer()
    run.turn(1)
    assert run.recorded("eval_reward") == [5.0]
    assert run.finish().best_opt_steps == 2


@pytest.mark.parametrize("how", ["urgent", "failed"])
def test_urgent_end_evaluates_nothing(how: str) -> None:
    run = Run(evaluate_interval_opt_steps=4)
    run.turn(3)
    if how == "urgent":
        run.interrupter.stop("Ctrl-C", urgent=True)
    else:
        run.interrupter.fail(ValueError("x"))
    run.services.finish()
    assert run.site.requested == []


def test_failed_run_closes_its_recorder_as_failed_and_asks_no_agent() -> None:
    closed: list[bool] = []
    run = Run()
    run.recorder.close = lambda *, failed: closed.append(failed)  # type: ignore[method-assign]
    run.interrupter.fail(ValueError("x"))
    run.services.close(run.agent_record)
    assert closed == [True]
    assert run.asked == 0
    assert len(run.recorder.records) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_interrupted_run_has_failed_only_if_an_error_follows(fails: bool) -> None:
    closed: list[bool] = []
    run = Run()
    run.recorder.close = lambda *, failed: closed.append(failed)  # type: ignore[method-assign]
    run.interrupter.fail(KeyboardInterrupt())
    if fails:
        run.interrupter.fail(OSError("the disk is full"))
    run.services.close(run.agent_record)
    assert closed == [fails]


def test_recorder_is_closed_even_if_the_last_record_fails() -> None:
    closed: list[bool] = []
    run = Run()
    run.recorder.close = lambda *, failed: closed.append(failed)  # type: ignore[method-assign]

    def agent_record() -> dict[str, float]:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="device"):
        run.services.close(agent_record)
    assert closed == [False]


def test_result_sums_the_run_up() -> None:
    run = Run(stop=MaxOptSteps(4))
    run.services.watch.lap("opt")
    run.turn(4, seconds=8.0)
    result = run.finish()
    assert (result.env_steps, result.opt_steps, result.wall_s) == (40, 4, 8.0)
    assert (result.env_steps_per_s, result.opt_steps_per_s) == (5.0, 0.5)
    assert sum(result.learner_shares.values()) == pytest.approx(1.0)
    summary = json.loads(json.dumps(result.summary()))
    assert summary["env_steps_per_s"] == 5.0
    assert summary["stop_reason"] == "4 optimisation steps are done"
    assert summary["best_score"] is None
