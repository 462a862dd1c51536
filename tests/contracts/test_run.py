"""What every run promises, whatever its batches come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns
from asyncrl.learner.bookkeeper import BookkeepingConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.learner.trainer import BaseTrainer
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.offline import OfflineTrainer
from tests.learner.test_async_trainer import Stage
from tests.support.fakes import ConstantAgent
from tests.support.streams import make_outbox, play
from tests.training.test_trainer import build

BATCH_SIZE = 8
BOOKS = {"record_interval_s": 0.0, "record_interval_opt_steps": 2, "eval_interval_opt_steps": 0}


def with_actors(**parts: Any) -> BaseTrainer:
    stage = Stage(**{"books": BOOKS} | parts)
    stage.manager.at_start = lambda: (stage.say_hello(), stage.feed())
    return stage.trainer


def with_environments(**parts: Any) -> BaseTrainer:
    books = BookkeepingConfig(**parts.pop("books", BOOKS))
    settings = {"batch_size": BATCH_SIZE, "books": books}
    return build(settings=settings, **{"stop": None} | parts)


def with_data(**parts: Any) -> BaseTrainer:
    buffer = UniformReplayConfig(capacity=100).build(make_outbox(1, 4, 1)._schema, seed=0)
    for message in play([[""] * 30], make_outbox(1, 4, 1))[1]:
        buffer.push(message.columns, message.rows)
    books = BookkeepingConfig(**parts.pop("books", BOOKS))
    agent = parts.pop("agent", None) or ConstantAgent()
    return OfflineTrainer(agent, buffer, batch_size=BATCH_SIZE, books=books, **parts)


Make = Callable[..., BaseTrainer]


@pytest.fixture(params=[with_actors, with_environments, with_data])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


# --- a loop of the user's own ---------------------------------------------------------------------


def test_loop_of_ones_own_does_what_train_does(make: Make) -> None:
    agent, recorder = ConstantAgent(), MemoryRecorder()
    trainer = make(agent=agent, stop=MaxOptSteps(9), recorder=recorder)
    with trainer:
        for batch in trainer.batches():
            assert len(batch["obs"]) == BATCH_SIZE
            trainer.learn(batch)
    result = trainer.result()
    assert (result.opt_steps, agent.opt_steps) == (9, 9)
    assert result.stop_reason == "9 optimisation steps are done"
    assert recorder.failed is False
    assert [r["agent/loss"] for r in recorder.records if "agent/loss" in r][-1] == 1 / 9


def test_loop_may_end_when_it_likes(make: Make) -> None:
    trainer = make()
    with trainer:
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.books.counts.opt_steps == 4:
                break
    assert (trainer.result().opt_steps, trainer.result().stop_reason) == (4, "the loop ended")


def test_batch_may_be_left_out(make: Make) -> None:
    trainer = make(stop=MaxOptSteps(3))
    seen = 0
    with trainer:
        for batch in trainer.batches():
            seen += 1
            if seen % 2:
                trainer.learn(batch)
    assert (trainer.result().opt_steps, seen) == (3, 5)


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


def test_error_of_another_part_reaches_the_loop(make: Make) -> None:
    trainer = make()

    def go_on() -> None:
        with trainer:
            trainer.interrupter.fail(ValueError("of another part"))
            while True:
                trainer.run_step()

    with pytest.raises(ValueError, match="of another part"):
        go_on()


@pytest.mark.parametrize("over", [False, True])
def test_there_are_batches_only_while_a_run_goes_on(make: Make, over: bool) -> None:
    trainer = make(stop=MaxOptSteps(1))
    if over:
        trainer.train()
    with pytest.raises(ConfigError, match="put the loop into `with trainer:`"):
        trainer.run_step()
    trainer.close()


def test_run_takes_place_once(make: Make) -> None:
    trainer = make(stop=MaxOptSteps(1))
    with trainer:
        assert trainer.run_step() in {True, False}
    with pytest.raises(ConfigError, match="has trained already"):
        trainer.train()


# --- its beginning and its end --------------------------------------------------------------------


class Failing(ConstantAgent):
    def opt(self, batch: Columns) -> Mapping[str, float]:
        if self.opt_steps == 4:
            raise ArithmeticError("no")
        return super().opt(batch)


@pytest.mark.fault("F10")
def test_error_of_the_agent_is_raised_and_the_recorder_hears_of_it(make: Make) -> None:
    recorder = MemoryRecorder()
    with pytest.raises(ArithmeticError, match="no"):
        make(agent=Failing(), recorder=recorder).train()
    assert recorder.failed is True


@pytest.mark.fault("F10")
def test_recorder_that_fails_at_the_end_does_not_hide_why_it_came(make: Make) -> None:
    class FailingRecorder(MemoryRecorder):
        def close(self, *, failed: bool) -> None:
            super().close(failed=failed)
            raise OSError("no space left")

    with pytest.raises(ArithmeticError, match="no") as caught:
        make(agent=Failing(), recorder=FailingRecorder()).train()
    assert "no space left" in "".join(caught.value.__notes__)


@pytest.mark.fault("F10")
def test_beginning_that_fails_is_an_end_too(make: Make) -> None:
    class Unwilling(MemoryRecorder):
        def start(self, config: Mapping[str, object]) -> None:
            raise OSError("no such host")

    recorder = Unwilling()
    with pytest.raises(OSError, match="no such host"):
        make(recorder=recorder).train()
    assert recorder.failed is True


def test_reason_of_who_interrupts_it_stands_in_the_result(make: Make) -> None:
    trainer = make()
    trainer.interrupter.stop("not today")
    result = trainer.train()
    assert (result.stop_reason, result.opt_steps) == ("not today", 0)
