"""The order reaches the disk in its order, whatever the disk does; a slow one slows actors down."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.checkpoint.record_file import RecordFile
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, ModelVersion
from asyncrl.learner import order as module
from asyncrl.learner.order import RecordedOrder
from asyncrl.learner.order_log import (
    Event,
    Kind,
    Learns,
    OrderFile,
    OrderLog,
    Published,
    Pushed,
    Reprioritised,
    Sampled,
    Saved,
    Threads,
    Took,
    checksum_of,
)
from tests.support.helpers import wait_until
from tests.support.sample_messages import SCHEMA, make_experience

MODEL = {"w": np.arange(6.0).reshape(2, 3).T, "b": np.array(1.0)}


def shown(events: list[Event]) -> list[str]:
    """Return them with their types, which do not count when tuples are compared."""
    return [repr(event) for event in events]


def order_of(tmp_path: Path, interrupter: Interrupter | None = None) -> RecordedOrder:
    order = RecordedOrder(
        tmp_path / "order", SCHEMA, lambda: {"name": "mine"}, interrupter or Interrupter()
    )
    order.begin()
    return order


def test_events_and_experience_come_back(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    order.published(ModelInfo(version=ModelVersion(0), params=MODEL))
    messages = [make_experience(seq=seq) for seq in (1, 2)]
    for message in messages:
        order.message(message)
        order.pushed(1)
        order.pushed(1)
    order.sampled(5000)
    order.took()
    order.learns(env_steps=130)
    order.changed(Reprioritised())
    order.took()
    order.learns(env_steps=10**9)
    order.close()
    order.close()

    threads = torch.get_num_threads()
    file = OrderFile(tmp_path / "order")
    assert file.head["name"] == "mine"
    events: list[Event] = []
    for event in file.events():
        if isinstance(event, Pushed):
            columns, rows = file.pop(event.segments)
            i = sum(isinstance(e, Pushed) for e in events)
            message, part = messages[i // 2], slice(i % 2, i % 2 + 1)
            np.testing.assert_array_equal(rows, message.rows[part])
            for name, column in message.columns.items():
                np.testing.assert_array_equal(columns[name], column[part])
                assert columns[name].dtype == column.dtype
        events.append(event)
    assert shown(events) == shown(
        [
            Published(0, checksum_of(MODEL)),
            *[Pushed(1)] * 4,
            Sampled(5000),
            Took(),
            Threads(threads),
            Learns(130),
            Reprioritised(),
            Took(),
            Learns(10**9),
        ]
    )
    assert file.ended
    assert (file.event_bytes, file.experience_bytes) == (
        2 + 4 + 4 * 2 + 3 + 2 * 1 + 2 + 3 + 1 + 6,
        2 * (4 + messages[0].rows.nbytes + sum(c.nbytes for c in messages[0].columns.values())),
    )


def test_checksum_depends_on_names_and_values_not_on_memory_layout() -> None:
    copied = {name: np.ascontiguousarray(value) for name, value in MODEL.items()}
    assert checksum_of(copied) == checksum_of(MODEL)
    assert checksum_of({**MODEL, "b": np.array(2.0)}) != checksum_of(MODEL)
    assert checksum_of({"v": MODEL["w"], "b": MODEL["b"]}) != checksum_of(MODEL)


def test_checkpoint_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 1000.0)
    order = order_of(tmp_path)
    places = [order.saved() for _ in range(2)]
    assert places == [{"part": 1, "save": 1}, {"part": 1, "save": 2}]

    def is_there() -> bool:
        try:
            events = [*OrderFile(tmp_path / "order").events()]
        except CheckpointError:  # the head is not there yet
            return False
        return shown(events) == shown([Saved(1), Saved(2)])

    wait_until(is_there, 10.0, "the checkpoints to be written")
    order.close()


class Held(RecordFile):
    """A disk that takes no experience until it is let go."""

    go: threading.Event

    def append(self, kind: int, *pieces: bytes | Array) -> None:
        if kind == Kind.MESSAGE:
            assert self.go.wait(10.0)
        super().append(kind, *pieces)


def test_slow_disk_holds_up_the_experience_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Held, "go", threading.Event(), raising=False)
    monkeypatch.setattr(module, "RecordFile", Held)
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    order = order_of(tmp_path)
    order.message(make_experience(seq=1))
    second = threading.Thread(target=order.message, args=[make_experience(seq=2)], daemon=True)
    second.start()
    wait_until(lambda: "slower than the experience" in caplog.text, 10.0, "the warning")
    assert second.is_alive()
    Held.go.set()
    second.join(10.0)
    assert not second.is_alive()
    order.close()
    assert OrderFile(tmp_path / "order").head


class Full(RecordFile):
    """A disk that is full after the head."""

    def append(self, kind: int, *pieces: bytes | Array) -> None:
        if kind != Kind.HEAD:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(kind, *pieces)


def test_full_disk_ends_the_record_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RecordFile", Full)
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    interrupter = Interrupter()
    order = order_of(tmp_path, interrupter)
    order.took()
    wait_until(lambda: "No space left on device" in caplog.text, 10.0, "the warning")
    for seq in range(1, 4):
        order.message(make_experience(seq=seq))
        order.pushed(2)
    order.close()
    assert not order._pending
    assert not interrupter.is_set
    file = OrderFile(tmp_path / "order")
    assert [*file.events()] == []
    assert not file.ended


def test_place_where_nothing_can_be_created_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    order = RecordedOrder(tmp_path / "file" / "order", SCHEMA, dict, Interrupter())
    with pytest.raises(ConfigError, match=r"cannot create .*order"):
        order.begin()
    order.close()


LOOP = b'{"format": 1, "columns": [], "after": {"part": 1}}'


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda _: None, "ends before the run has begun"),
        (lambda file: file.append(Kind.END), "ends before the run has begun"),
        (lambda file: file.append(Kind.HEAD, b'{"format": 0}'), "another version of asyncrl"),
        (lambda file: file.append(Kind.HEAD, LOOP), "follows a later part"),
    ],
)
def test_files_that_are_no_order_are_refused(
    tmp_path: Path, write: Callable[[RecordFile], Any], words: str
) -> None:
    with RecordFile(tmp_path / "order") as file:
        write(file)
    with pytest.raises(CheckpointError, match=words):
        OrderLog(tmp_path / "order")
