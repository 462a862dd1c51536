"""Recorders behind a thread: what a slow, failing or hanging one does to the others and the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from asyncrl.core.recorder import Record
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.memory import MemoryRecorder
from tests.support.helpers import no_thread

DEADLINE_S = 10.0


class GatedRecorder(MemoryRecorder):
    """Blocks in its first `write` until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def write(self, record: Record) -> None:
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        super().write(record)


class FailingRecorder(MemoryRecorder):
    """Raises in the one method named."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self.calls: list[str] = []

    def start(self, config: Mapping[str, object]) -> None:
        self._enter("start")

    def write(self, record: Record) -> None:
        self._enter("write")

    def close(self, *, failed: bool) -> None:
        self._enter("close")

    def _enter(self, where: str) -> None:
        self.calls.append(where)
        if where == self._where:
            raise OSError(f"{where} on a full disk")


@pytest.fixture
def gated() -> Iterator[GatedRecorder]:
    recorder = GatedRecorder()
    yield recorder
    recorder.gate.set()


def record(number: int) -> dict[str, float]:
    return {"env_steps": float(number)}


def steps(recorder: MemoryRecorder) -> list[float]:
    return [kept["env_steps"] for kept in recorder.records]


@pytest.mark.behaviour(number=61)
def test_slow_recorder_does_not_hold_up_its_caller(gated: GatedRecorder) -> None:
    background = BackgroundRecorder([gated])
    background.start({})
    for number in range(5):
        background.write(record(number))  # would hang here until the test times out
    assert gated.entered.wait(DEADLINE_S)
    assert gated.records == []
    gated.gate.set()
    background.close(failed=False)
    assert steps(gated) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("apart", [False, True], ids=["in its thread", "in another thread"])
def test_flush_waits_until_all_records_are_written(gated: GatedRecorder, apart: bool) -> None:
    recorder = BackgroundRecorder([BackgroundRecorder([gated]) if apart else gated])
    recorder.start({})
    assert recorder.flush(0.0), "nothing to write"
    for step in range(3):
        recorder.write({"opt_steps": float(step)})
    assert gated.entered.wait(DEADLINE_S)
    assert not recorder.flush(0.0)
    gated.gate.set()
    assert recorder.flush(DEADLINE_S)
    assert len(gated.records) == 3
    recorder.close(failed=False)
    assert recorder.flush(0.0)


def test_overflow_drops_the_oldest_and_says_how_many(gated: GatedRecorder) -> None:
    background = BackgroundRecorder([gated], max_pending=3)
    background.start({})
    background.write(record(0))
    assert gated.entered.wait(DEADLINE_S)
    for number in range(1, 8):
        background.write(record(number))
    gated.gate.set()
    background.close(failed=False)
    assert steps(gated) == [0, 5, 6, 7]
    assert "record/dropped" not in gated.records[0]
    assert [kept["record/dropped"] for kept in gated.records[1:]] == [4, 4, 4]


@pytest.mark.parametrize("where", ["start", "write", "close"])
def test_failing_recorder_is_left_out_and_the_others_continue(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = FailingRecorder(where), MemoryRecorder()
    background = BackgroundRecorder([bad, good])
    with caplog.at_level(logging.WARNING):
        background.start({})
        background.write(record(0))
        background.write(record(1))
        background.close(failed=False)
    assert steps(good) == [0, 1]
    assert good.failed is False
    assert str(background.failure) == f"{where} on a full disk"
    (warning,) = caplog.records
    assert "FailingRecorder failed and is disabled; the run" in warning.getMessage()
    assert warning.exc_info


@pytest.mark.parametrize("allows_threads", [True, False])
def test_hanging_recorder_is_left_behind_and_the_others_are_closed(
    allows_threads: bool,
    gated: GatedRecorder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = MemoryRecorder()
    background = BackgroundRecorder([gated, good], close_timeout_s=0.05)
    background.start({})
    background.write(record(0))
    assert gated.entered.wait(DEADLINE_S)
    if not allows_threads:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    background.close(failed=False)
    assert good.failed is (False if allows_threads else None)
    assert (
        "MemoryRecorder was not closed: can't start new thread" in caplog.text
    ) != allows_threads
    assert gated.failed is None
    assert isinstance(background.failure, TimeoutError)
    assert "GatedRecorder hangs; abandoned after 0.05 s, with 0 records not" in caplog.text
    gated.gate.set()
    background._thread.join(DEADLINE_S)
    assert good.records == []  # it was closed, so the thread must not come back to it


@pytest.mark.fault("F21")
def test_resume_position_reaches_resumable_recorders(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 9, "opt_steps": 9}\n')
    recorder = BackgroundRecorder([MemoryRecorder(), JsonlRecorder(path)])
    recorder.resume_at(env_steps=5, opt_steps=5)
    recorder.start({})
    recorder.close(failed=False)
    assert not path.read_text()
    assert recorder.failure is None
