"""What every run promises, whatever its batches come from."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import EvaluationConfig, RunConfig, train_async, train_from_data, train_sync
from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import ActorId, Arrays
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.source import DataSource
from asyncrl.learner.stop_conditions import MaxOptSteps, ReachesUpperBound
from asyncrl.learner.trainer import Trainer
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from tests.fleet.test_actor_table import report
from tests.learner.test_async_trainer import Failing, Stage
from tests.run.test_inline_source import build
from tests.support.fakes import ConstantAgent
from tests.support.helpers import wait_until
from tests.support.services import services_config
from tests.support.streams import make_outbox, play

BATCH_SIZE = 8
SERVICES = {
    "record_interval_s": 0.0,
    "record_interval_opt_steps": 2,
    "evaluate_interval_opt_steps": 0,
}


class Scores:
    """Scores a model by the steps that it has learned for."""

    def __init__(self) -> None:
        self.calls = 0

    def evaluate(self, policy: Any) -> Evaluation:
        self.calls += 1
        time.sleep(0.001)  # by the clock, the next one would be later
        return Evaluation(float(policy.opt_steps), {})

    def close(self) -> None: ...


def with_actors(**parts: Any) -> Trainer:
    stage = Stage(**{"services": SERVICES} | parts)
    stage.manager.at_start = lambda: (stage.say_hello(), stage.feed())
    return stage.trainer


def with_environments(**parts: Any) -> Trainer:
    services = services_config(**parts.pop("services", SERVICES))
    return build(
        settings={"batch_size": BATCH_SIZE},
        services=services,
        **{"stop": None, "evaluator": Scores()} | parts,
    )


def with_data(**parts: Any) -> Trainer:
    buffer = UniformReplayConfig(capacity=100).build(make_outbox(1, 4, 1)._schema, seed=0)
    for message in play([[""] * 30], make_outbox(1, 4, 1))[1]:
        buffer.push(message.columns, message.rows)
    services = services_config(**parts.pop("services", SERVICES))
    agent = parts.pop("agent", None) or ConstantAgent()
    evaluator = parts.pop("evaluator", Scores())
    evaluation = InlineEvaluation(evaluator, agent) if evaluator else None
    source = DataSource(buffer, batch_size=BATCH_SIZE)
    return Trainer(agent, source, services=services, evaluation=evaluation, **parts)


Make = Callable[..., Trainer]


@pytest.fixture(params=[with_actors, with_environments, with_data])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


# --- custom training loops ------------------------------------------------------------------------


@pytest.mark.behaviour(number=5)
def test_custom_loop_does_what_train_does(make: Make) -> None:
    agent, recorder = ConstantAgent(), MemoryRecorder()
    trainer = make(agent=agent, stop=MaxOptSteps(9), recorder=recorder)
    with trainer:
        for batch in trainer.batches():
            assert len(batch["obs"]) == BATCH_SIZE
            assert trainer.learn(batch).keys() == {"loss"}
    result = trainer.result()
    assert (result.opt_steps, agent.opt_steps) == (9, 9)
    assert result.stop_reason == "9 optimisation steps are done"
    assert recorder.failed is False
    assert [r["agent/loss"] for r in recorder.records if "agent/loss" in r][-1] == 1 / 9


def test_error_in_a_loop_ends_the_run_and_is_raised(make: Make) -> None:
    recorder = MemoryRecorder()
    trainer = make(recorder=recorder)
    error = ArithmeticError("in the loop")

    def learn_in_vain() -> None:
        with trainer:
            next(trainer.batches())
            raise error

    with pytest.raises(ArithmeticError, match="in the loop") as caught:
        learn_in_vain()
    assert caught.value is error
    assert recorder.failed is True
    assert trainer.should_stop


@pytest.mark.fault("F10")
def test_error_of_another_part_reaches_the_loop(make: Make) -> None:
    recorder = MemoryRecorder()
    trainer = make(recorder=recorder)

    def go_on() -> None:
        with trainer:
            trainer.interrupter.fail(ValueError("of another part"))
            while True:
                trainer.run_step()

    with pytest.raises(ValueError, match="of another part"):
        go_on()
    assert recorder.failed is True


def test_run_takes_place_once_and_there_are_batches_only_while_it_is_active(make: Make) -> None:
    trainer = make(stop=MaxOptSteps(1))
    with pytest.raises(ConfigError, match="put the loop into `with trainer:`"):
        trainer.run_step()
    with trainer:
        assert trainer.run_step() in {True, False}
    with pytest.raises(ConfigError, match="put the loop into `with trainer:`"):
        trainer.run_step()
    with pytest.raises(ConfigError, match="has been used"):
        trainer.train()


# --- its beginning and its end --------------------------------------------------------------------


@pytest.mark.fault("F10")
def test_recorder_that_fails_at_the_end_does_not_hide_why_it_came(make: Make) -> None:
    class FailingRecorder(MemoryRecorder):
        def close(self, *, failed: bool) -> None:
            super().close(failed=failed)
            raise OSError("no space left")

    recorder = FailingRecorder()
    with pytest.raises(ArithmeticError, match="no") as caught:
        make(agent=Failing(), recorder=recorder).train()
    assert "no space left" in "".join(caught.value.__notes__)
    assert recorder.failed is True


@pytest.mark.fault("F10")
def test_beginning_that_fails_is_an_end_too(make: Make) -> None:
    class Unwilling(MemoryRecorder):
        def start(self, config: Mapping[str, object]) -> None:
            raise OSError("no such host")

    recorder = Unwilling()
    with pytest.raises(OSError, match="no such host"):
        make(recorder=recorder).train()
    assert recorder.failed is True


# --- what it leaves behind ------------------------------------------------------------------------


def no_process_writes_in(directory: Path) -> None:
    other = Checkpointer(directory)
    other.lock()
    other.unlock()


class SlowDisk(Checkpointer):
    """Writes once the run has ended or failed."""

    interrupter: Interrupter

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> Path:
        self.interrupter.wait(20)
        return super().save(name, groups, meta)


@pytest.mark.fault("F10")
def test_checkpoint_that_is_being_written_is_waited_for_also_after_a_failure(
    make: Make, tmp_path: Path
) -> None:
    disk = SlowDisk(tmp_path)
    disk.lock()
    services = SERVICES | {"save_interval_opt_steps": 2}
    trainer = make(agent=Failing(), services=services, checkpointer=disk)
    disk.interrupter = trainer.interrupter
    with pytest.raises(ArithmeticError, match="no"):
        trainer.train()
    # The one of step 2, unless the next one came before its thread had run.
    assert Checkpointer(tmp_path).load_latest().count("opt_steps") in {2, 4}
    no_process_writes_in(tmp_path)


@pytest.mark.fault("F21")
def test_run_that_is_resumed_at_its_end_has_nothing_to_do(make: Make, tmp_path: Path) -> None:
    make(checkpointer=Checkpointer(tmp_path), stop=MaxOptSteps(3)).train()
    checkpointer, recorder = Checkpointer(tmp_path), MemoryRecorder()
    checkpointer.lock()
    checkpoint = checkpointer.load_latest()
    parts: dict[str, Any] = {"checkpointer": checkpointer, "checkpoint": checkpoint}
    log: list[str] = []
    trainer = make(stop=MaxOptSteps(3), recorder=recorder, callbacks=[Noting(log, "a")], **parts)
    with trainer:
        assert list(trainer.batches()) == []
    assert trainer.result().opt_steps == 3
    assert (recorder.records, log) == ([], [])
    no_process_writes_in(tmp_path)


def test_model_that_the_last_record_makes_the_best_is_on_disk_when_the_run_has_ended(
    make: Make, tmp_path: Path
) -> None:
    services = SERVICES | {"save_best_by": "opt_steps", "record_interval_opt_steps": 1000}
    checkpointer = Checkpointer(tmp_path)
    checkpointer.lock()
    result = make(services=services, checkpointer=checkpointer, stop=MaxOptSteps(5)).train()
    assert (result.best_score, result.best_opt_steps) == (5.0, 5)
    assert Checkpointer(tmp_path).load("best").count("opt_steps") == 5
    no_process_writes_in(tmp_path)


def test_models_are_evaluated_at_intervals_and_the_last_one_too(make: Make) -> None:
    recorder = MemoryRecorder()
    services = SERVICES | {"evaluate_interval_opt_steps": 4}
    trainer = make(services=services, recorder=recorder, stop=MaxOptSteps(9))
    result = trainer.train()
    seen = [r["eval/model_version"] for r in recorder.records if "eval_reward" in r]
    assert seen == [4, 8, 9] or (not trainer.source.repeats and seen == [4, 9])
    assert (result.last_score, result.best_opt_steps) == (9.0, 9)


class Diverging(ConstantAgent):
    def model_info(self) -> ModelInfo:
        info = super().model_info()
        weights = np.array([0.0, np.nan if self.opt_steps >= 4 else 1.0])
        return ModelInfo(version=info.version, params={**info.params, "weights": weights})


@pytest.mark.fault("F9")
@pytest.mark.parametrize(
    ("services", "last"),
    [
        ({"evaluate_interval_opt_steps": 5}, 9),
        ({"save_interval_opt_steps": 5}, 9),
        ({}, 4),  # as it is noticed when the run ends
    ],
)
def test_model_that_is_not_finite_is_neither_published_nor_evaluated_nor_saved(
    make: Make, services: dict[str, Any], last: int, tmp_path: Path
) -> None:
    checkpointer, recorder = Checkpointer(tmp_path), MemoryRecorder()
    services = SERVICES | {"save_interval_opt_steps": 0} | services
    parts: dict[str, Any] = {"checkpointer": checkpointer, "recorder": recorder}
    trainer = make(agent=Diverging(), services=services, stop=MaxOptSteps(last), **parts)
    words = f"'weights' is not finite after {min(last, 5)} optim"
    with pytest.raises(NonFiniteModel, match=words) as raised:
        trainer.train()
    assert not hasattr(raised.value, "__notes__"), "it is said once"
    assert checkpointer.names() == []
    assert not any("eval_reward" in record for record in recorder.records)
    if make is with_actors:
        assert trainer.source._link.address.models["act"].version == 0  # type: ignore[attr-defined]


# --- callbacks ------------------------------------------------------------------------------------


class Noting(Callback):
    """Notes when it is called, and what it was given when the run was resumed."""

    def __init__(self, log: list[str], name: str, fails_in: str = "") -> None:
        self.log, self.name, self.fails_in = log, name, fails_in
        self.restored: Mapping[str, Any] = {}

    def note(self, method: str) -> None:
        self.log.append(f"{method} {self.name}")
        if method == self.fails_in:
            raise ArithmeticError(f"in {method}")

    def begin(self, trainer: Training) -> None:
        self.note("begin")

    def step(self, trainer: Training) -> None:
        self.note("step")
        self.loss = trainer.last_record.get("agent/loss")

    def record(self, trainer: Training) -> Mapping[str, float]:
        self.note("record")
        return {f"{self.name}/steps": float(trainer.opt_steps)}

    def state(self, trainer: Training) -> Mapping[str, Any]:
        self.note("state")
        return {"at": trainer.opt_steps, "name": self.name}

    def restore(self, trainer: Training, state: Mapping[str, Any]) -> None:
        self.restored = state

    def end(self, trainer: Training) -> None:
        self.note("end")
        self.summary = trainer.summary()

    def close(self, trainer: Training) -> None:
        self.note("close")


class NotingRecorder(MemoryRecorder):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def start(self, config: Mapping[str, object]) -> None:
        self.log.append("start recorder")

    def close(self, *, failed: bool) -> None:
        self.log.append("close recorder")


@pytest.mark.behaviour(number=62)
def test_callbacks_are_called_in_their_order_and_closed_in_the_opposite_one(make: Make) -> None:
    log: list[str] = []
    callbacks = [Noting(log, "a"), Noting(log, "b")]
    make(recorder=NotingRecorder(log), callbacks=callbacks, stop=MaxOptSteps(3)).train()
    steps = [word for word in log if word.startswith("step")]
    assert steps[:2] * (len(steps) // 2) == steps == ["step a", "step b"] * (len(steps) // 2)
    assert len(steps) >= 2 * 3, "turns without a batch count, too"
    assert {(one.loss, one.summary["opt_steps"]) for one in callbacks} == {(0.75, 3)}
    assert [word for word in log if not word.startswith(("step", "state"))] == [
        *("start recorder", "begin a", "begin b"),
        *("record a", "record b"),  # after two optimisation steps
        *("end a", "end b", "record a", "record b", "close recorder", "close b", "close a"),
    ]


def test_a_callback_may_save_or_end_the_run_when_it_begins(make: Make, tmp_path: Path) -> None:
    at: list[int] = []

    class Saves(Callback):
        def begin(self, trainer: Training) -> None:
            trainer.save()

        def step(self, trainer: Training) -> None:
            if trainer.opt_steps == 1 and 1 not in at:
                trainer.save()

        def saved(self, trainer: Training, opt_steps: int) -> None:
            at.append(opt_steps)

    saves = make(callbacks=[Saves()], checkpointer=Checkpointer(tmp_path), stop=MaxOptSteps(3))
    assert saves.train().opt_steps == 3
    assert {0, 1} <= set(at), "what happens in a callback is dispatched in the next turn"

    class Ends(Callback):
        def begin(self, trainer: Training) -> None:
            trainer.interrupter.stop("it was learned before")

    result = make(callbacks=[Ends()]).train()
    assert (result.opt_steps, result.stop_reason) == (0, "it was learned before")


def test_numbers_of_a_callback_are_recorded_and_may_end_the_run_and_choose_the_best(
    make: Make,
) -> None:
    recorder = MemoryRecorder()
    services, stop = SERVICES | {"save_best_by": "mine/steps"}, ReachesUpperBound("mine/steps", 5)
    parts: dict[str, Any] = {"recorder": recorder, "callbacks": [Noting([], "mine")]}
    result = make(services=services, stop=stop, **parts).train()
    assert result.stop_reason == "mine/steps reached 5 (6)"
    assert (result.best_by, result.best_score, result.best_opt_steps) == ("mine/steps", 6.0, 6)
    assert recorder.last("mine/steps") == 6.0


class Events(Callback):
    """Keeps what it was called about."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name not in {"evaluated", "saved", "published", "episodes"}:
            return super().__getattribute__(name)
        return lambda _, *values: self.seen.setdefault(name, []).append(values)


@pytest.mark.behaviour(number=62)
def test_callbacks_are_called_for_evaluations_checkpoints_models_and_episodes(
    make: Make, tmp_path: Path
) -> None:
    events = Events()
    services, checkpointer = SERVICES | {"save_interval_opt_steps": 2}, Checkpointer(tmp_path)
    parts: dict[str, Any] = {"checkpointer": checkpointer, "stop": MaxOptSteps(7)}
    trainer = make(services=services, callbacks=[events], **parts)
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.opt_steps == 3 and trainer.services._evaluation is not None:
                trainer.evaluate()
            if trainer.opt_steps == 4 and make is with_actors:
                table = trainer.proxy.actors  # type: ignore[attr-defined]
                table.on_report(report(0, episode_returns=np.ones(2), episode_lengths=np.ones(2)))
    assert events.seen["saved"] == [(2,), (4,), (6,)]
    [(evaluation,)] = events.seen["evaluated"]
    assert (evaluation.score, evaluation.record["eval/model_version"]) == (3.0, 3.0)
    assert ("published" in events.seen) is (make is with_actors)
    assert ("episodes" in events.seen) is (make is not with_data)


def test_actors_that_are_restarted_or_dropped_are_reported_in_the_learners_thread() -> None:
    calls: list[tuple[str, int, int]] = []

    class Hears(Callback):
        def actor_restarted(self, trainer: Training, actor_id: int) -> None:
            calls.append(("restarted", actor_id, threading.get_ident()))

        def actor_dropped(self, trainer: Training, actor_id: int) -> None:
            calls.append(("dropped", actor_id, threading.get_ident()))

    def losing(trainer: Trainer) -> None:
        table = trainer.proxy.actors  # type: ignore[attr-defined]
        table.on_restart(ActorId(0))
        table.on_drop(ActorId(1))

    trainer = with_actors(callbacks=[Hears()], stop=MaxOptSteps(3))
    other = threading.Thread(target=losing, args=(trainer,))
    other.start()
    other.join()
    trainer.train()
    here = threading.get_ident()
    assert calls == [("restarted", 0, here), ("dropped", 1, here)]


def test_logged_numbers_are_recorded_once_and_may_end_the_run(make: Make) -> None:
    recorder = MemoryRecorder()
    trainer = make(recorder=recorder, stop=ReachesUpperBound("mine/x", 3))
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.opt_steps <= 3:
                trainer.log("mine/x", trainer.opt_steps)
    logged = [record["mine/x"] for record in recorder.records if "mine/x" in record]
    assert logged == [2.0, 3.0], "the newest one since the record before"
    assert trainer.result().stop_reason == "mine/x reached 3"
    bad = [("", 1.0), ("fps", 1.0), ("actor/0/env_steps", 1.0), ("agent/loss", 1.0)]
    for name, value in (*bad, ("mine/x", "text")):
        with pytest.raises(ConfigError, match=r"log takes a name|must be one number"):
            trainer.log(name, value)  # type: ignore[arg-type]


METHODS = ["begin", "step", "record", "end", "close"]


@pytest.mark.behaviour(number=41)
@pytest.mark.fault("F10")
@pytest.mark.parametrize("method", METHODS)
def test_callback_that_fails_ends_the_run_by_its_name_and_all_are_closed(
    make: Make, method: str
) -> None:
    log: list[str] = []
    callbacks = [Noting(log, "a"), Noting(log, "b", fails_in=method), Noting(log, "c")]
    with pytest.raises(ArithmeticError, match=f"in {method}") as caught:
        make(callbacks=callbacks, stop=MaxOptSteps(3)).train()
    assert f"raised by callback Noting, in its `{method}`" in caught.value.__notes__
    assert log[-3:] == ["close c", "close b", "close a"]


@pytest.mark.fault("F12")
def test_callbacks_end_only_where_there_is_time(make: Make) -> None:
    log: list[str] = []

    class Interrupts(Callback):
        def step(self, trainer: Training) -> None:
            trainer.interrupter.stop("a signal", urgent=True)

    make(callbacks=[Interrupts(), Noting(log, "a")]).train()
    assert "end a" not in log
    assert log[-1] == "close a"


@pytest.mark.fault("F21")
def test_callback_resumes_from_what_the_checkpoint_holds_of_it(make: Make, tmp_path: Path) -> None:
    class Another(Noting):
        pass

    first = [Noting([], "a"), Noting([], "b")]
    make(callbacks=first, checkpointer=Checkpointer(tmp_path), stop=MaxOptSteps(3)).train()
    again = [Another([], "c"), Noting([], "a"), Noting([], "b"), Noting([], "d")]
    saved = Checkpointer(tmp_path).load("3")
    make(callbacks=again, checkpoint=saved, stop=MaxOptSteps(4)).train()
    given = [{}, {"at": 3, "name": "a"}, {"at": 3, "name": "b"}, {}]
    assert [callback.restored for callback in again] == given


class Keeping(Callback):
    def __init__(self, value: object) -> None:
        self.value = value

    def state(self, trainer: Training) -> dict[str, object]:
        return {"best": self.value}

    def restore(self, trainer: Training, state: Mapping[str, Any]) -> None:
        self.value = state["best"]


def test_state_of_a_callback_may_be_infinite_or_of_numpy(make: Make, tmp_path: Path) -> None:
    value = [-math.inf, np.float32(0.5), {"a": None}]
    kept = {"checkpointer": Checkpointer(tmp_path), "callbacks": [Keeping(value)]}
    make(**kept, stop=MaxOptSteps(3)).train()
    again = Keeping(None)
    make(checkpoint=Checkpointer(tmp_path).load("3"), callbacks=[again]).close()
    assert again.value == value


def test_state_that_cannot_be_saved_is_refused_before_anything_is_learned(make: Make) -> None:
    trainer = make(callbacks=[Keeping({1, 2})])
    with pytest.raises(ConfigError, match=r"best=\{1, 2\}, which cannot be saved"):
        trainer.train()
    assert trainer.opt_steps == 0


@pytest.mark.parametrize("train", [train_async, train_sync, train_from_data])
def test_argument_that_no_way_to_train_takes_is_refused(train: Any) -> None:
    with pytest.raises(ConfigError, match="no argument callback; did you mean callbacks"):
        train(DQNConfig(), *([Path()] * (train is train_from_data)), print, callback=[])


@pytest.mark.parametrize("train", [train_async, train_sync, train_from_data])
@pytest.mark.parametrize("off", [{"where": "off"}, {"interval_opt_steps": 0}])
def test_end_that_waits_for_evaluations_is_refused_without_any(
    train: Any, off: dict[str, Any]
) -> None:
    where = [Path()] * (train is train_from_data)
    config = RunConfig(evaluate=EvaluationConfig(**off))
    words = rf"waits for evaluations, but evaluate\.{next(iter(off))} is off"
    with pytest.raises(ConfigError, match=words):
        train(DQNConfig(), *where, print, config, stop=ReachesUpperBound("eval_reward", 1.0))


# --- checkpoints on demand ------------------------------------------------------------------------


def test_checkpoint_on_demand_can_be_resumed_from(make: Make, tmp_path: Path) -> None:
    disk = Checkpointer(tmp_path)
    trainer = make(checkpointer=disk)
    with pytest.raises(ConfigError, match="put the loop into `with trainer:`"):
        trainer.save()
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.opt_steps == 3:
                env_steps = trainer.env_steps
                trainer.save()
                wait_until(lambda: "3" in disk.names(), 20.0, "a checkpoint on disk")
            if trainer.opt_steps == 5:
                break
    assert (trainer.result().opt_steps, trainer.result().stop_reason) == (5, "the loop ended")
    checkpoint = disk.load("3")
    assert (checkpoint.count("opt_steps"), checkpoint.count("env_steps")) == (3, env_steps)
    resumed = make(checkpoint=checkpoint, stop=MaxOptSteps(4))
    assert resumed.train().opt_steps == 4


@pytest.mark.fault("F21")
def test_replay_may_be_left_out_of_checkpoints(make: Make, tmp_path: Path) -> None:
    services = SERVICES | {"save_replay": False}
    disk = Checkpointer(tmp_path)
    make(services=services, checkpointer=disk, stop=MaxOptSteps(3)).train()
    checkpoint = disk.load("3")
    assert set(checkpoint.groups) == {"agent", "model"}
    resumed = make(services=services, checkpoint=checkpoint, stop=MaxOptSteps(5))
    assert resumed.train().opt_steps == 5


# --- evaluations on demand ------------------------------------------------------------------------


def test_evaluation_on_demand_reports_its_score_and_may_make_the_model_the_best(make: Make) -> None:
    recorder = MemoryRecorder()
    trainer = make(recorder=recorder, stop=MaxOptSteps(4))
    scores: list[float | None] = []
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.opt_steps in {1, 3}:
                once, again = trainer.evaluate(), trainer.evaluate()
                assert once == again
                scores.append(once.score if once else None)
    result = trainer.result()
    assert scores == [1.0, 3.0]
    assert [r["eval_reward"] for r in recorder.records if "eval_reward" in r] == [1.0, 3.0]
    assert (result.best_score, result.best_opt_steps, result.last_score) == (3.0, 3, 3.0)


@pytest.mark.parametrize("make", [with_environments, with_data])
def test_evaluation_is_refused_where_nothing_evaluates(make: Make) -> None:
    trainer = make(evaluator=None)
    with trainer, pytest.raises(ConfigError, match="this run has no evaluation"):
        trainer.evaluate()
