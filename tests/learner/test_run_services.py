"""What is due is done, once, and no later than it can be; the result says how a run ended."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.checkpoint.checkpoint import PASSING, Checkpoint
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.learner.progress import Counts
from asyncrl.learner.run_services import RunServices
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
)
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.memory import MemoryRecorder
from tests.support.fakes import DirectSaver, FakeCheckpointer, FakeSite, ThriftyAgent
from tests.support.scale import examples
from tests.support.services import services_config


class Run:
    """Services, a manual clock and all that they talk to."""

    def __init__(
        self,
        *scores: float,
        slow: bool = False,
        stop: StopCondition | None = None,
        setup: Setup | None = None,
        repeats: bool = False,
        warm_up_left: int = 0,
        **config: Any,
    ) -> None:
        steps = ("evaluate_interval_opt_steps", "save_interval_opt_steps")
        off = dict.fromkeys((*steps, "record_interval_s", "save_interval_s"), 0)
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
            repeats=repeats,
            warm_up_left=lambda: warm_up_left,
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

    def saved(self) -> Checkpoint:
        """Return a checkpoint of this moment."""
        self.services.save()
        _, groups, meta = self.checkpointer.saved[-1]
        return Checkpoint(groups, meta)

    def finish(self) -> TrainResult:
        self.services.finish()
        self.services.close(self.agent_record)
        return self.services.result()

    def recorded(self, name: str) -> list[float]:
        return [record[name] for record in self.recorder.records if name in record]


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


@pytest.mark.parametrize(
    ("repeats", "cpu_s", "wall_s", "requested"),
    [
        # On 4 cores, 0.5 s of the machine are 20 % of 2.5 s and, after two of them, 5 % of 10 s.
        (False, 2.0, 0.0, [1, 6, 26, 46]),
        (False, 0.0, 0.5, [1, 5, 24, 43]),  # one that stops the run takes 0.5 s as well
        (False, 0.1, 0.0, [*range(1, 61)]),
        (True, 0.0, 0.5, [*range(1, 61)]),
    ],
)
def test_evaluations_take_5_percent_of_the_machine_unless_the_clock_decides_nothing(
    repeats: bool, cpu_s: float, wall_s: float, requested: list[int]
) -> None:
    setup = Setup(cores=8, quota=4.0)
    run = Run(setup=setup, repeats=repeats, evaluate_interval_opt_steps=1, record_interval_s=1)

    def evaluate() -> None:
        run.now_s += wall_s

    run.site.on_request, run.site.record = evaluate, {"eval/cpu_s": cpu_s}
    for _ in range(60):
        run.turn(seconds=0.5)
    assert run.site.requested == requested
    assert (run.recorded("share/evaluation")[-1] < 0.08) == (not repeats)
    run.services.counts.opt_steps += 1
    assert run.services.evaluate(0.0) is not None, "one that is asked for does not wait"
    run.services.counts.opt_steps += 1
    run.finish()
    assert run.site.requested[-2:] == [61, 62], "nor does the last one"


@pytest.mark.behaviour(number=11)
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


def test_best_by_records_needs_records() -> None:
    with pytest.raises(ConfigError, match=r"'fps' .*record\.interval_s"):
        services_config(save_best_by="fps", record_interval_s=0.0)


def test_best_is_the_model_that_was_evaluated_not_the_newest() -> None:
    run = Run(3.0, slow=True, evaluate_interval_opt_steps=2)
    run.agent.params["action"][()] = 4
    run.turn(2)
    run.agent.params["action"][()] = 9
    run.site.answer()
    run.turn(1, seconds=1.5)
    ((name, groups, meta),) = run.checkpointer.saved
    assert (name, meta["opt_steps"]) == ("best", 2)
    assert set(groups) == {"model"}
    assert groups["model"]["action"] == 4
    (record,) = [record for record in run.recorder.records if "eval_reward" in record]
    assert record == {
        "env_steps": 30.0,
        "opt_steps": 3.0,
        "wall_s": 1.5,
        "train_s": 0.0,
        "eval_reward": 3.0,
        "eval/length_mean": 5.0,
        "eval/model_version": 2.0,
        "eval/best": 3.0,
    }


def test_checkpoints_are_saved_at_their_intervals_with_what_is_needed_to_continue() -> None:
    run = Run(3.0, 2.0, save_interval_opt_steps=4, evaluate_interval_opt_steps=4)
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
    assert run.checkpointer.names() == ["4"], "12 s after the first step"
    run.turn(opt_steps=92)
    saver.took_s = 2.0
    for _ in range(40):
        run.turn(seconds=4.0)
    assert run.checkpointer.names() == ["4", "100", "125"], "100 s after one that took 2 s"
    passing = [PASSING in meta for _, _, meta in run.checkpointer.saved]
    assert passing == [True, False, True]


def saved_after(turns: int, *scores: float, **config: Any) -> Checkpoint:
    """Return the checkpoint of a run of `turns` turns of 5 s each."""
    run = Run(*scores, **config)
    for _ in range(turns):
        run.turn(seconds=5.0)
    return run.saved()


@pytest.mark.fault("F21")
def test_resumed_run_continues_counting_where_the_other_was() -> None:
    positions: list[dict[str, int]] = []
    resumed = Run(save_interval_opt_steps=4, record_interval_opt_steps=1)
    resumed.recorder.resume_at = lambda **position: positions.append(position)  # type: ignore[attr-defined]
    resumed.services.start({}, [resumed.stored])
    assert positions == [], "it is not resumed yet"
    resumed.resume(saved_after(6))
    assert positions == [{"env_steps": 60, "opt_steps": 6}]
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
@pytest.mark.parametrize(
    ("stop", "ended"),
    [
        (MaxOptSteps(3), True),
        (MaxOptSteps(4), False),
        (ReachesUpperBound("samples_total", 50.0), True),
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
    saved = run.saved()
    for bound, ended in ((10.0, True), (13.0, False)):
        resumed = Run(stop=AnyOf(ReachesUpperBound("eval_reward", bound), MaxOptSteps(9)))
        resumed.services.restore(saved)
        assert resumed.services.has_ended({}) == ended
        assert resumed.services.result().seconds_to_stop_bar == (15.0 if ended else None)


@pytest.mark.fault("F15")
def test_one_request_is_one_checkpoint() -> None:
    run = Run()
    run.interrupter.save_requested = True
    for _ in range(3):
        run.turn()
    assert run.checkpointer.names() == ["1"]


def test_end_waits_for_the_disk_as_long_as_it_may() -> None:
    waited: list[float] = []
    run = Run(save_timeout_s=7.0)
    run.services._saver.close = waited.append  # type: ignore[union-attr, method-assign]
    run.services.close_saver()
    assert waited == [7.0]


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


def test_seconds_to_the_bar_are_those_until_an_evaluation_reached_it() -> None:
    stop = AnyOf(MaxSeconds(100), ReachesUpperBound("eval_reward", 10))
    config = {"evaluate_interval_opt_steps": 2, "evaluate_final_timeout_s": 0}
    run = Run(3.0, 12.0, slow=True, stop=stop, **config)
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


def test_run_without_an_optimisation_step_was_all_start_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(warm_up_left=40)
    run.turn(0, seconds=2.0)
    result = run.finish()
    assert "the run has learned nothing: the loop ended, and 0 environment steps" in caplog.text
    assert "the warm-up needs 40 more" in caplog.text
    assert result.start_up_s == result.wall_s == 2.0
    assert result.verdict.kind == "too-early"


@pytest.mark.parametrize(
    ("turns", "timeout_s", "requested"),
    [((4,), 7.0, [4]), ((4, 1), 7.0, [4, 5]), ((3,), 0.0, []), ((0,), 7.0, [])],
)
def test_last_model_is_evaluated_once_and_the_wait_is_logged(
    turns: tuple[int, ...], timeout_s: float, requested: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be off, or have nothing to do."""
    caplog.set_level(logging.INFO)
    run = Run(1.0, evaluate_interval_opt_steps=4, evaluate_final_timeout_s=timeout_s)
    for opt_steps in turns:
        run.turn(opt_steps)
    run.finish()
    assert run.site.requested == requested
    assert ("evaluation of the last model, at most 7 s" in caplog.text) == (5 in requested)


def during_evaluation(run: Run, seconds: float) -> Run:
    """Leave an evaluation that takes this long, of which each look takes a second."""
    run.turn(2)
    run.turn(1)
    since_s = run.now_s

    def look() -> None:
        run.now_s += 1.0
        if run.site.busy and run.now_s > since_s + seconds:
            run.site.answer()

    run.site.on_take = look
    return run


def test_evaluation_that_is_under_way_at_the_end_is_awaited() -> None:
    run = during_evaluation(Run(3.0, 4.0, slow=True, evaluate_interval_opt_steps=2), 3.0)
    result = run.finish()
    assert run.site.requested == [2, 3]
    assert (result.last_score, result.best_score) == (4.0, 4.0)


def test_endless_evaluation_does_not_delay_the_run(caplog: pytest.LogCaptureFixture) -> None:
    config = {"evaluate_interval_opt_steps": 2, "evaluate_final_timeout_s": 30.0}
    run = during_evaluation(Run(slow=True, **config), math.inf)
    before = run.now_s
    result = run.finish()
    assert 30.0 <= run.now_s - before <= 35.0
    assert run.site.requested == [2], "one at a time, also at the end"
    assert result.last_score is None
    assert "evaluate.final_timeout_s=30" in caplog.text


def test_evaluation_on_demand_waits_for_the_one_before_and_for_its_own_score() -> None:
    run = during_evaluation(Run(1.0, 2.0, slow=True, evaluate_interval_opt_steps=2), 3.0)
    for _ in range(2):  # the second time it is of the same model
        evaluation = run.services.evaluate(30.0)
        assert evaluation is not None
        assert evaluation.score == 2.0
        assert run.site.requested == [2, 3]


def test_evaluation_on_demand_that_takes_too_long_is_recorded_all_the_same() -> None:
    run = Run(5.0, slow=True)
    run.turn(2)
    assert run.services.evaluate(0.0) is None
    run.site.answer()
    run.turn(1)
    assert run.recorded("eval_reward") == [5.0]
    assert run.finish().best_opt_steps == 2


def test_urgent_end_evaluates_nothing() -> None:
    urgent, failed = Run(evaluate_interval_opt_steps=4), Run(evaluate_interval_opt_steps=4)
    urgent.interrupter.stop("Ctrl-C", urgent=True)
    failed.interrupter.fail(ValueError("x"))
    for run in (urgent, failed):
        run.turn(3)
        run.services.finish()
        assert run.site.requested == []


@pytest.mark.parametrize("fails", [False, True])
def test_interrupted_run_has_failed_only_if_an_error_follows(fails: bool) -> None:
    run = Run()
    run.interrupter.fail(KeyboardInterrupt())
    if fails:
        run.interrupter.fail(OSError("the disk is full"))
    run.services.close(run.agent_record)
    assert run.recorder.failed is fails


def test_recorder_is_closed_even_if_the_last_record_fails() -> None:
    def agent_record() -> dict[str, float]:
        raise RuntimeError("the device is gone")

    run = Run()
    with pytest.raises(RuntimeError, match="device"):
        run.services.close(agent_record)
    assert run.recorder.failed is False


def test_result_sums_the_run_up(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(actors=3, envs_per_actor=5, samples_per_insert=2.0, cores=4)
    run = Run(stop=MaxOptSteps(4), setup=setup, save_best_by="agent/none", record_interval_s=60)
    run.services.start({}, [lambda: {"samples_per_insert": 3.75}])
    run.services.watch.lap("opt")
    run.turn(4, seconds=8.0)
    result = run.finish()
    assert (result.env_steps, result.opt_steps, result.wall_s) == (40, 4, 8.0)
    assert (result.setup, result.samples_per_insert) == (setup, 3.75)
    assert "agent/none" in caplog.text, "it was never recorded"
    assert (result.env_steps_per_s, result.opt_steps_per_s) == (5.0, 0.5)
    assert sum(result.learner_shares.values()) == pytest.approx(1.0)
    summary = json.loads(json.dumps(result.summary()))
    assert summary["env_steps_per_s"] == 5.0
    assert summary["stop_reason"] == "4 optimisation steps are done"
    assert summary["best_score"] is None
