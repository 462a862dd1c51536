"""Rows become segments: nothing is lost, repeated or mixed up, whatever the episodes are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import Rows, segments_per_message
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import Experience
from asyncrl.core.segment import END, TERMINATED, TRUNCATED, ColumnSpec, SegmentConfig, make_schema
from asyncrl.core.types import Columns
from tests.replay.segments import streams
from tests.support.scale import examples
from tests.support.streams import PEER, Transition, make_outbox, play, schema, take_all

LOOKAHEAD = 2


def read_back(messages: list[Experience], length: int) -> list[Transition]:
    """Read every transition out of the segments, by the rule: the next row is what followed."""
    found = []
    for message in messages:
        for k, rows in enumerate(message.rows):
            column = {name: values[k] for name, values in message.columns.items()}
            for t in range(min(length, rows)):
                flags = column["flags"][t]
                if flags & END:
                    continue
                assert t + 1 < rows, "a transition must have its successor in the segment"
                found.append(
                    Transition(
                        float(column["obs"][t, 0]),
                        int(column["action"][t]),
                        float(column["reward"][t]),
                        bool(flags & TERMINATED),
                        bool(flags & TRUNCATED),
                        float(column["obs"][t + 1, 0]),
                    )
                )
    return found


def read_stacks(message: Experience, frame_stack: int) -> Iterator[list[float]]:
    """Yield the frames of each transition, newest first, as far as its episode reaches back."""
    layout = message.columns["obs"].shape[1] - LOOKAHEAD
    for obs, flags, rows in zip(
        message.columns["obs"], message.columns["flags"], message.rows, strict=True
    ):
        for row in range(frame_stack - 1, min(layout, rows)):
            if not flags[row] & END:
                rows_back = range(row, row - frame_stack, -1)
                inside = takewhile(lambda r: not flags[r] & END, rows_back)  # noqa: B023
                yield [float(obs[r, 0]) for r in inside]


@given(streams(max_steps=40, max_envs=4), st.integers(1, 7), st.integers(1, 4))
@settings(max_examples=examples(150), deadline=None)
def test_every_transition_arrives_once(ends: list[list[str]], length: int, lookahead: int) -> None:
    outbox = make_outbox(len(ends), length, lookahead)
    histories, messages = play(ends, outbox)
    expected = sorted((t for env in histories for t in env), key=lambda t: t.obs)
    found = sorted(read_back(messages, length), key=lambda t: t.obs)
    assert found == expected
    assert sum(m.transitions for m in messages) == len(expected) == outbox.produced
    assert [m.seq for m in messages] == list(range(1, len(messages) + 1))


@given(streams(max_steps=40, max_envs=4), st.integers(1, 5), st.integers(2, 4))
@settings(max_examples=examples(100), deadline=None)
def test_segments_look_back_at_the_frames_before(
    ends: list[list[str]], length: int, frame_stack: int
) -> None:
    outbox = make_outbox(len(ends), length, LOOKAHEAD, frame_stack)
    histories, messages = play(ends, outbox)
    before = {}  # the frame before each one, where that belongs to the same episode
    for stream in histories:
        for t in stream:
            before[t.next_obs] = t.obs
    stacks = [stack for message in messages for stack in read_stacks(message, frame_stack)]
    for stack in stacks:
        assert all(before[new] == old for new, old in pairwise(stack))
        assert len(stack) == frame_stack or stack[-1] not in before, "cut within an episode"
    assert len(stacks) == sum(map(len, histories)) == outbox.produced


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_rows_that_do_not_count_leave_nothing_behind(counting: list[list[bool]]) -> None:
    outbox, ids = make_outbox(2, 3, 1), np.arange(2)
    expected: list[float] = []
    for t, only in enumerate(counting):
        flags = np.zeros(2, np.uint8)
        obs = np.array([[t], [100 + t]], np.float32)
        histories = dict.fromkeys(("action", "reward", "model_version"), flags)
        outbox.push(Rows(ids, {"obs": obs, "flags": flags, **histories}, np.array(only)))
        expected += [value for value, counts in zip([t, 100 + t], only, strict=True) if counts]
    outbox.push(Rows(ids, {"obs": np.full((2, 1), -1.0), "flags": np.full(2, END, np.uint8)}))
    outbox.finish()
    found = [t for m in take_all(outbox) for t in read_back([m], 3)]
    assert sorted(t.obs for t in found) == sorted(expected)
    assert outbox.produced == len(found)


def test_message_stays_below_its_byte_limit() -> None:
    layout = schema(4, 1)
    config = SegmentConfig(length=4, max_message_bytes=2 * layout.segment_bytes)
    assert segments_per_message(config, layout, n_envs=8) == 2
    one = SegmentConfig(length=4, max_message_bytes=1)
    assert segments_per_message(one, layout, n_envs=8) == 1, "a segment is never split"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_may_lie_in_any_order_and_have_another_dtype(dtype: str) -> None:
    columns_of_pairs = (ColumnSpec("obs", "float32", (3, 2)), ColumnSpec("flags", "uint8"))
    pairs = make_schema(columns_of_pairs, length=1, lookahead=1)
    outbox = Outbox(PEER, pairs, SegmentConfig(length=1), 2)
    obs = np.arange(12, dtype=dtype).reshape(2, 3, 2)
    for t in range(2):
        columns: Columns = {"obs": np.asfortranarray(obs + t), "flags": np.zeros(2, np.uint8)}
        outbox.push(Rows(np.arange(2), columns))
    outbox.finish()
    message = take_all(outbox)[0]
    np.testing.assert_array_equal(message.columns["obs"], np.stack([obs, obs + 1], axis=1))


NAMES = ("action", "reward", "flags", "model_version")


def rows_of(turns: int, *, left_out: str = "", width: int = 1) -> Columns:
    columns: Columns = {name: np.zeros(turns) for name in NAMES if name != left_out}
    return columns | {"obs": np.zeros((turns, width), np.float32)}


@pytest.mark.parametrize(
    ("rows", "error", "names"),
    [
        (Rows(np.arange(1), rows_of(8), None, 8), ConfigError, "8 turns .* room for 7 turns"),
        (Rows(np.arange(1), rows_of(2), np.ones(1, bool), 2), ConfigError, "rows of 2 turns"),
        (Rows(np.arange(1), rows_of(1, width=3)), ValueError, "shape"),
        (Rows(np.arange(1), rows_of(1, left_out="reward")), ConfigError, "reward"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Rows, error: type[Exception], names: str) -> None:
    outbox = make_outbox(1, 6, 1)
    if "reward" not in rows.columns:
        outbox.push(Rows(np.arange(1), rows_of(1)))
        end: Columns = {"obs": np.zeros((1, 1)), "flags": np.full(1, END, np.uint8)}
        outbox.push(Rows(np.arange(1), end))
    room, produced = outbox.room, outbox.produced
    with pytest.raises(error, match=names):
        outbox.push(rows)
    assert (outbox.room, outbox.produced) == (room, produced)
