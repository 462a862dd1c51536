"""A replay is saved as of one moment while it changes, without a second copy in memory."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.checkpoint.array_file import collected
from asyncrl.core.messages import Experience
from asyncrl.core.replay_buffer import StreamsState
from asyncrl.core.segment import END
from asyncrl.core.types import ArrayStream, Params
from asyncrl.replay import files as _saving
from asyncrl.replay.uniform import UniformReplayConfig
from tests.replay.segments import segment, streams, with_columns
from tests.replay.test_state import CASES, RINGS, SOME, Case, push, use
from tests.support.helpers import same

KINDS = ["uniform", "prioritized, on a device", "prioritized sequences", "trajectories"]
every_case = pytest.mark.parametrize("case", [CASES[kind] for kind in KINDS], ids=KINDS)
every_ring = pytest.mark.parametrize("case", [RINGS[kind] for kind in KINDS[:3]], ids=KINDS[:3])


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
@settings(max_examples=10, deadline=None)
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
        for _ in range(40):
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
