"""The order reaches the disk in its order, whatever the disk does; a slow one slows actors down."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.checkpoint.record_file import RecordFile
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.types import Array
from asyncrl.extensions.order import recording as module
from asyncrl.extensions.order.log import Kind, OrderFile, OrderLog, Saved
from asyncrl.extensions.order.recording import RecordedOrder
from tests.support.helpers import wait_until
from tests.support.sample_messages import SCHEMA, make_experience


def order_of(tmp_path: Path, interrupter: Interrupter | None = None) -> RecordedOrder:
    order = RecordedOrder(
        tmp_path / "order", SCHEMA, lambda: {"name": "mine"}, interrupter or Interrupter()
    )
    order.begin()
    return order


def test_checkpoint_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 1000.0)
    order = order_of(tmp_path)
    places = [order.state()["order"] for _ in range(2)]
    assert places == [{"part": 1, "save": 1}, {"part": 1, "save": 2}]

    def is_there() -> bool:
        try:
            events = [*OrderFile(tmp_path / "order").events()]
        except CheckpointError:  # the head is not there yet
            return False
        return events == [Saved(1), Saved(2)] and all(isinstance(e, Saved) for e in events)

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
        (
            lambda file: file.append(
                Kind.HEAD, b'{"format": 1, "columns": [], "after": {"part": 1}}'
            ),
            "follows a later part",
        ),
    ],
)
def test_files_that_are_no_order_are_refused(
    tmp_path: Path, write: Callable[[RecordFile], Any], words: str
) -> None:
    with RecordFile(tmp_path / "order") as file:
        write(file)
    with pytest.raises(CheckpointError, match=words):
        OrderLog(tmp_path / "order")
