"""A replay is saved as of one moment while it changes, without a second copy in memory."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.checkpoint.array_file import collected
from asyncrl.core.messages import Experience
from asyncrl.core.replay_buffer import StreamsState
from asyncrl.core.segment import END
from asyncrl.core.types import Array, ArrayStream, Params
from asyncrl.replay import files as _saving
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.replay.large import SCHEMA, SEGMENTS
from tests.replay.segments import segment, streams, with_columns
from tests.replay.test_state import CASES, RINGS, SOME, Case, push, use
from tests.support.helpers import same

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_ring = pytest.mark.parametrize("case", RINGS.values(), ids=RINGS)


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    """Hand segments over one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_saving, "PIECE_BYTES", 1)
        yield


class Between:
    """A stream between whose pieces something else happens."""

    def __init__(self, stream: ArrayStream, happens: Iterator[object]) -> None:
        self._stream = stream
        self._happens = happens
        self.shapes, self.rest, self.close = stream.shapes, stream.rest, stream.close

    def pieces(self) -> Iterator[tuple[int, Params]]:
        next(self._happens, None)
        for piece in self._stream.pieces():
            yield piece
            next(self._happens, None)


def life_of(buffer: Any, messages: list[Experience], at_once: int) -> Iterator[None]:
    """Push and sample, some messages a turn."""
    for first in range(0, len(messages), at_once):
        push(buffer, messages[first : first + at_once])
        use(buffer, 1)
        yield


@every_case
@given(before=streams(), after=streams(), at_once=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_what_comes_is_what_was_there(
    case: Case, before: list[list[str]], after: list[list[str]], at_once: int
) -> None:
    buffer = case.build()
    assert isinstance(buffer, StreamsState)
    push(buffer, case.messages([env * 4 for env in before]))
    use(buffer)
    expected = buffer.state()
    goes_on = life_of(buffer, case.messages([env * 4 for env in after]), at_once)
    assert same(collected(Between(buffer.stream(), goes_on)), expected)


@every_case
def test_two_streams_do_not_disturb_each_other(case: Case) -> None:
    buffer = case.build()
    first, second, third = (case.messages(SOME) for _ in range(3))
    push(buffer, first)
    expected = [buffer.state()]
    found = [buffer.stream()]
    push(buffer, second[: len(second) // 2])
    expected.append(buffer.state())
    found.append(buffer.stream())
    assert same(collected(Between(found[1], life_of(buffer, third, 3))), expected[1])
    assert same(collected(found[0]), expected[0])


@every_ring
def test_a_stream_holds_what_was_there_before_another_state_was_loaded(case: Case) -> None:
    other, buffer = case.build(), case.build()
    push(other, case.messages([["", "C"] * 12]))
    push(buffer, case.messages(SOME))
    expected, stream = buffer.state(), buffer.stream()
    buffer.load_state(other.state())
    assert same(collected(stream), expected)


def rows_of(buffer: Any) -> list[bytes]:
    """Return what is known of each row, the oldest first."""
    ring = buffer._ring
    rows = ring.rows(np.arange(ring.oldest, ring.newest))
    parts = [np.asarray(ring.take(name, rows)) for name in ("obs", "action", "reward")]
    if "priorities" in (state := buffer.state()):
        parts.append(state["priorities"])
    return [b"|".join(part[i].tobytes() for part in parts) for i in range(len(rows))]


@every_ring
@pytest.mark.parametrize("room", [0, 1, 100])
@pytest.mark.parametrize("taken", [0, 2])
def test_rows_for_which_there_is_no_room_are_given_up(
    case: Case, room: int, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    buffer, again = case.build(), case.build(seed=5)
    push(buffer, case.messages(SOME))
    use(buffer)
    before = rows_of(buffer)
    stream = buffer.stream(room * buffer.schema.segment_bytes + 1)

    def happens() -> Iterator[None]:
        yield from [None] * taken
        push(buffer, case.messages([["", "", "T"] * 20]))  # all is overwritten

    with caplog.at_level(logging.WARNING):
        state = collected(Between(stream, happens()))
    again.load_state(state)
    after = rows_of(again)
    n_lost = len(before) - len(after)
    assert (n_lost > 0) == (room < 100)
    places = [before.index(row) for row in after]
    assert places == sorted(places), "the rows that were there, in their order"
    assert len(set(places)) == len(places)
    assert (f"lacks {n_lost} of {len(before)} rows" in caplog.text) == (n_lost > 0)
    if taken and case is RINGS["uniform"]:
        assert places[0] == 0, "the oldest segments had come before"
    assert use(again) or not after


def test_room_comes_back_as_pieces_are_taken() -> None:
    case = RINGS["uniform"]
    buffer = case.build()
    push(buffer, case.messages(SOME))
    expected = buffer.state()
    columns, rows = segment(buffer.schema)
    pushes = iter(lambda: buffer.push(columns, rows), None)
    assert same(collected(Between(buffer.stream(buffer.schema.segment_bytes), pushes)), expected)


def test_closed_stream_keeps_nothing() -> None:
    case = RINGS["uniform"]
    buffer = case.build()
    push(buffer, case.messages(SOME))
    stream: Any = buffer.stream()
    push(buffer, case.messages(SOME)[:1])
    assert stream._kept
    stream.close()
    stream.close()
    push(buffer, case.messages(SOME))
    assert not stream._kept
    assert not buffer._ring._streams


@pytest.mark.fault("F30")
def test_push_waits_for_one_piece_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    piece_bytes = 1 << 20
    monkeypatch.setattr(_saving, "PIECE_BYTES", piece_bytes)
    assert SCHEMA.segment_bytes < piece_bytes
    buffer = UniformReplayConfig(capacity=40 * SCHEMA.length).build(SCHEMA, 0)
    columns, rows = segment(SCHEMA)
    for _ in range(40):
        buffer.push(columns, rows)
    stream: Any = buffer.stream()
    copied: list[int] = []
    copy = stream._copy

    def counted(slots: Any) -> dict[str, Array]:
        assert stream._lock.locked()
        copies: dict[str, Array] = copy(slots)
        copied.append(sum(column.nbytes for column in copies.values()))
        return copies

    monkeypatch.setattr(stream, "_copy", counted)
    for _ in stream.pieces():
        assert not stream._lock.locked()
        buffer.push(columns, rows)
    assert sum(copied) >= 40 * SCHEMA.segment_bytes
    assert max(copied) <= piece_bytes


@pytest.mark.parametrize("room", [0, 2, None])
def test_segments_are_whole_whichever_side_is_faster(room: int | None) -> None:
    schema = with_columns("extra", length=4, lookahead=1, frame=(50,))
    config = UniformReplayConfig(capacity=16 * schema.length)
    buffer = config.build(schema, 0)
    ending = threading.Event()
    owner = threading.Lock()
    pushed = 0

    def push_on() -> None:
        nonlocal pushed
        while not ending.is_set():
            columns, rows = segment(schema)
            for name in ("obs", "action", "reward", "extra"):
                columns[name][:] = pushed
            finish = buffer.stage(columns, rows, lambda: None)
            with owner:
                finish()
                pushed += 1

    pusher = threading.Thread(target=push_on)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    pusher.start()
    try:
        for _ in range(100):
            with owner:
                known, stream = pushed, buffer.stream(room and room * schema.segment_bytes)
            state = collected(stream)
            extra = state["column/extra"][:, 0]
            given_up = (state["column/flags"] == END).all(axis=1)
            whole = np.where(given_up, 0, extra)
            for name in ("obs", "action", "reward", "extra"):
                column = state[f"column/{name}"]
                assert np.array_equal(column.T, np.broadcast_to(whole, column.T.shape)), name
            expected = set(range(max(0, known - 16), known))
            assert set(extra[~given_up].tolist()) <= expected
            assert room is not None or not given_up.any()
            config.build(schema, 0).load_state(state)
    finally:
        ending.set()
        pusher.join()
        sys.setswitchinterval(interval)


def test_segments_that_a_queue_hands_out_are_saved_and_forgotten() -> None:
    queue = TrajectoryQueueConfig(capacity=100).build(with_columns(length=4, lookahead=1), 0)
    columns, rows = segment(queue._schema, obs=[1.0, 2.0, 3.0, 4.0, 5.0])
    for _ in range(6):
        queue.push(columns, rows)
    expected = queue.state()
    stream: Any = queue.stream()
    pieces = stream.pieces()
    next(pieces)
    queue.sample(100)
    assert len(stream._segments) == 5
    stream.close()
    assert not stream._segments
    assert len(expected["column/obs"]) == 6


MEASURE = """
import sys, threading
from dataclasses import replace
from pathlib import Path
import numpy as np
from asyncrl.checkpoint.array_file import evict
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.replay_buffer import replay_groups
from tests.replay.large import LARGE, SCHEMA, SEGMENTS

def status_bytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

kind, happens, directory = sys.argv[1:]
config = LARGE[kind]
if happens == "in a file":
    config = replace(config, memory_map=Path(directory))
buffer = config.build(SCHEMA, 0)
columns = {c.name: np.ones((5, SCHEMA.rows, *c.shape), c.dtype) for c in SCHEMA.columns}
columns["flags"][:] = 0
rows = np.full(5, SCHEMA.rows)
for k in range(0, SEGMENTS, 5):
    buffer.push(columns, rows)
if happens == "in a file":
    evict(buffer._ring.columns.values())
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = status_bytes("VmRSS")
groups = replay_groups(buffer, save=True, room_bytes=32 << 20)
saver = threading.Thread(
    target=Checkpointer(Path(directory) / "saved").save, args=("1", groups, {"run": {}})
)
saver.start()
while happens == "pushed" and saver.is_alive():
    buffer.push(columns, rows)
saver.join()
size = next((Path(directory) / "saved" / "1").glob("replay.*")).stat().st_size
print(size, status_bytes("VmHWM") - before)
"""


@pytest.mark.fault("F30")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(
    ("kind", "happens"),
    [
        ("uniform", "nothing"),
        ("uniform", "pushed"),
        ("uniform", "in a file"),
        ("prioritized", "pushed"),
        ("queue", "nothing"),
    ],
)
@pytest.mark.processes
def test_replay_is_never_in_memory_twice(tmp_path: Path, kind: str, happens: str) -> None:
    command = [sys.executable, "-c", MEASURE, kind, happens, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    size, more_bytes = map(int, done.stdout.split())
    assert size > SEGMENTS * SCHEMA.segment_bytes
    assert more_bytes < 64 << 20, "some pieces, and what is kept of what was overwritten"
