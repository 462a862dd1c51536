"""Checkpoints are written during learning, and a disk that fails ends no run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.saver import Saver
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.types import Params
from tests.support.helpers import wait_until

GROUPS = {"model": {"weight": np.ones(3)}}


class SlowCheckpointer(Checkpointer):
    """Writes when the test says so, and fails when it says so."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.may_write = threading.Event()
        self.begun: list[str] = []
        self.written: list[str] = []
        self.fail: Callable[[], None] = lambda: None

    def save(self, name: str, groups: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
        self.begun.append(name)
        assert self.may_write.wait(20)
        self.fail()
        self.written.append(name)
        return Path(name)


class Stage:
    def __init__(self) -> None:
        self.checkpointer = SlowCheckpointer()
        self.interrupter = Interrupter()
        self.saver = Saver(self.checkpointer, self.interrupter)

    def save(self, *names: str) -> None:
        for name in names:
            self.saver.save(name, GROUPS, {})


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.checkpointer.may_write.set()
    stage.checkpointer.fail = lambda: None
    stage.saver.close(20)


def full_disk() -> None:
    raise CheckpointError("cannot save: no space left")


@pytest.mark.fault("F20")
def test_best_model_is_found_if_it_is_there_and_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = Saver(Checkpointer(tmp_path), Interrupter())
    assert saver.best() is None
    saver.save("best", GROUPS, {"score": 7.0})
    saver.close(20)
    found = saver.best()
    assert found is not None
    assert found.meta == {"score": 7.0}
    (tmp_path / "best" / "manifest.json").write_text("{}")
    assert saver.best() is None
    assert "damaged" in caplog.text


@pytest.mark.fault("F13", "F36")
def test_background_checkpoint_is_written_before_others(tmp_path: Path) -> None:
    checkpointer, other = Checkpointer(tmp_path), Checkpointer(tmp_path)
    checkpointer.lock()
    interrupter = Interrupter()
    interrupter.hurry = True
    saver = Saver(checkpointer, interrupter)
    saver.save("7", GROUPS, {})
    saver.close(20)

    def taken() -> bool:
        with suppress(ConfigError):
            other.lock()
            return True
        return False

    wait_until(taken, 20, "the lock")
    assert other.names() == ["7"]
    other.unlock()


def test_saving_does_not_block_and_keeps_the_newest_of_a_kind(stage: Stage) -> None:
    stage.save("1")
    wait_until(lambda: stage.checkpointer.begun == ["1"], 20, "the first to be written")
    stage.save("2", "best", "3", "best", "4")  # returns, though nothing can be written
    assert stage.checkpointer.written == []
    stage.checkpointer.may_write.set()
    stage.saver.close(20)
    assert stage.checkpointer.written[0] == "1"
    assert sorted(stage.checkpointer.written[1:]) == ["4", "best"]


class FakeStream:
    """Nothing, until it is closed."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self.closed = False

    def pieces(self) -> Iterator[tuple[int, Params]]:
        return iter(())

    def rest(self) -> Params:
        return {}

    def close(self) -> None:
        self.closed = True


def test_streams_are_closed_once_they_are_written_or_overtaken_or_have_failed(stage: Stage) -> None:
    written, overtaken, failing = (FakeStream() for _ in range(3))
    stage.saver.save("1", {**GROUPS, "replay": written}, {})
    wait_until(lambda: stage.checkpointer.begun == ["1"], 20, "the first to be written")
    stage.saver.save("2", {"replay": overtaken}, {})
    stage.saver.save("3", {"replay": failing}, {})
    assert (written.closed, overtaken.closed, failing.closed) == (False, True, False)
    stage.checkpointer.fail = lambda: full_disk() if stage.checkpointer.begun[1:] else None
    stage.checkpointer.may_write.set()
    wait_until(lambda: failing.closed, 20, "the end of the last one")
    assert written.closed
    wait_until(lambda: stage.saver.record()["checkpoint/failures"] == 1, 20, "a failure")
    stage.saver._errors.clear()


@pytest.mark.behaviour(number=16)
@pytest.mark.fault("F17")
def test_full_disk_is_reported_and_counted_and_the_next_checkpoint_is_another_try(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = stage.checkpointer
    checkpointer.may_write.set()

    def tried() -> int:
        return len(checkpointer.written) + int(stage.saver.record()["checkpoint/failures"])

    with caplog.at_level(logging.ERROR):
        for n in range(1, 6):
            checkpointer.fail = full_disk if n in {1, 2, 4} else lambda: None
            stage.save(str(n))
            wait_until(lambda n=n: tried() == n, 20, "the try")  # type: ignore[misc]
    stage.saver.close(20)
    assert checkpointer.written == ["3", "5"]
    goes_on, why = "training continues without checkpoint", "cannot save: no space left"
    assert [(record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        (f"{goes_on} {name} ({n} not written so far): {why}", has_traceback)
        for name, n, has_traceback in ((1, 1, True), (2, 2, False), (4, 3, True))
    ]
    assert not stage.interrupter.is_set


@pytest.mark.fault("F17")
def test_best_model_that_found_no_room_is_written_when_there_is_some(stage: Stage) -> None:
    stage.checkpointer.may_write.set()
    stage.checkpointer.fail = full_disk
    for names in (["best"], ["1"], ["best"]):
        failures = stage.saver.record().get("checkpoint/failures", 0.0)
        stage.save(*names)
        wait_until(
            lambda n=failures: stage.saver.record()["checkpoint/failures"] == n + 1,  # type: ignore[misc]
            20,
            "a failure",
        )
    stage.checkpointer.fail = lambda: None
    stage.save("2")
    stage.saver.close(20)  # raises nothing: all is on disk
    assert stage.checkpointer.written == ["2", "best"], "the newest of them, and once"
    assert stage.saver.record()["checkpoint/failures"] == 3


@pytest.mark.fault("F17")
def test_last_checkpoint_that_could_not_be_written_is_the_runs_error(stage: Stage) -> None:
    stage.checkpointer.may_write.set()
    stage.save("1")
    stage.checkpointer.fail = full_disk
    stage.save("2")
    with pytest.raises(CheckpointError, match="no space left"):
        stage.saver.close(20)
    stage.saver._errors.clear()


def test_disk_that_never_answers_does_not_hold_the_end_up(stage: Stage) -> None:
    stage.save("1")
    with pytest.raises(CheckpointError, match=r"not on disk after 0\.05 s"):
        stage.saver.close(0.05)


@pytest.mark.parametrize("how", ["on disk", "second signal"])
def test_wait_without_a_limit_lasts_until_the_disk_or_a_second_signal(
    stage: Stage, how: str
) -> None:
    stage.save("1")
    ended = threading.Event()
    closing = threading.Thread(target=lambda: (stage.saver.close(0.0), ended.set()))
    closing.start()
    wait_until(lambda: stage.saver._closing, 20, "the end")
    assert not ended.is_set()
    if how == "on disk":
        stage.checkpointer.may_write.set()
    else:
        stage.interrupter.hurry = True
    assert ended.wait(20)
    closing.join(20)
    assert stage.checkpointer.written == (["1"] if how == "on disk" else [])


def mistake() -> None:
    raise TypeError("a mistake")


@pytest.mark.fault("F10")
def test_mistake_in_the_program_ends_the_run(stage: Stage) -> None:
    stage.checkpointer.may_write.set()
    stage.checkpointer.fail = mistake
    stage.save("1")
    assert stage.interrupter.wait(20)
    with pytest.raises(TypeError, match="a mistake"):
        stage.interrupter.raise_if_failed()
    stage.saver.close(20)  # does not wait for a thread that is gone
