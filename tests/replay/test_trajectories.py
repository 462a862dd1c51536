"""A queue of trajectories: each transition once, in order, and sums that need no episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.actor.step_processor import OneStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import Experience
from asyncrl.core.segment import ColumnSpec, make_schema
from asyncrl.core.types import Columns, IntArray
from asyncrl.replay.trajectories import TrajectoryQueue, TrajectoryQueueConfig
from tests.replay.segments import streams
from tests.support.streams import SPEC, Transition, make_outbox, play, schema

GAMMA = 0.5
LENGTH = 4


def queue(
    *, capacity: int = 1000, start_columns: tuple[str, ...] = (), frame_stack: int = 1
) -> TrajectoryQueue:
    config = TrajectoryQueueConfig(capacity=capacity, gamma=GAMMA, start_columns=start_columns)
    return config.build(schema(LENGTH, config.lookahead, frame_stack), 0)


def played(
    ends: list[list[str]], *, frame_stack: int = 1
) -> tuple[list[list[Transition]], list[Experience]]:
    return play(ends, make_outbox(len(ends), LENGTH, 1, frame_stack))


def pushed(buffer: TrajectoryQueue, messages: list[Experience]) -> int:
    return sum(buffer.push(message.columns, message.rows) for message in messages)


@given(streams(), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_each_transition_is_handed_out_once_with_its_successor(
    ends: list[list[str]], batch_size: int
) -> None:
    histories, messages = played(ends)
    buffer = queue()
    assert pushed(buffer, messages) == len(buffer) == len(ends) * len(ends[0])
    by_obs = {t.obs: t for env in histories for t in env}
    seen = []
    while len(buffer):
        batch = buffer.sample(batch_size)
        assert batch["obs"].shape[1] == LENGTH + 1
        for b, t in np.argwhere(batch["mask"]):
            transition = by_obs[float(batch["obs"][b, t, 0])]
            seen.append(transition.obs)
            assert batch["obs"][b, t + 1, 0] == transition.next_obs, "also where an episode ended"
            assert batch["action"][b, t] == transition.action
            assert batch["reward"][b, t] == transition.reward
            assert batch["discount"][b, t] == (0.0 if transition.terminated else GAMMA)
    assert sorted(seen) == sorted(by_obs)


def test_oldest_come_first_and_batches_even_out() -> None:
    histories, messages = played([["", "", "T"] * 20])
    buffer = queue()
    total = pushed(buffer, messages)
    handed, order = 0, []
    for round_ in range(1, 11):
        batch = buffer.sample(5)
        handed += int(batch["mask"].sum())
        order += batch["obs"][:, :-1][batch["mask"]][:, 0].tolist()
        assert abs(handed - 5 * round_) < LENGTH, "never a segment away from what was asked for"
        assert len(buffer) == total - handed
    assert order == [t.obs for t in histories[0]][:handed]


def test_oldest_make_room_beyond_the_capacity() -> None:
    histories, messages = played([[""] * 40])
    buffer = queue(capacity=10)
    pushed(buffer, messages)
    assert 10 - LENGTH < len(buffer) <= buffer.capacity == 10
    batch = buffer.sample(100)
    newest = [t.obs for t in histories[0]][-len(batch["obs"]) * LENGTH :]
    assert set(batch["obs"][:, :-1][batch["mask"]][:, 0]) <= set(newest)


def stream_of(flags: list[int], memory: list[float]) -> tuple[Columns, IntArray]:
    """Return one segment, whose observations are the numbers of its rows."""
    columns = {
        "obs": np.arange(len(flags), dtype=np.float32)[None, :, None],
        "action": np.zeros((1, len(flags)), np.int64),
        "reward": np.ones((1, len(flags)), np.float32),
        "flags": np.array([flags], np.uint8),
        "memory": np.array([memory], np.float32)[..., None],
    }
    return columns, np.array([len(flags)])


@pytest.mark.parametrize(
    ("flags", "memory", "expected"),
    [
        # An episode that begins behind another one remembers nothing: its trajectory continues.
        ([0, 0, 1, 4, 0, 0, 0], [5, 6, 7, 0, 0, 1, 2], [(5, [0, 1, 2, 4, 5])]),
        # One that continues behind a cut does.
        ([0, 0, 0, 4, 0, 0, 0], [5, 6, 7, 0, 8, 9, 2], [(5, [0, 1, 2]), (8, [4, 5])]),
        ([4, 0, 4, 0, 2, 4, 4], [0, 8, 0, 0, 2, 0, 0], [(8, [1, 3, 4])]),
        # What lies beyond the trajectory begins the next one anyhow.
        ([0, 0, 0, 0, 0, 4, 0], [5, 6, 7, 8, 9, 0, 4], [(5, [0, 1, 2, 3, 4])]),
    ],
)
def test_trajectory_starts_over_where_the_memory_is_not_initial(
    flags: list[int], memory: list[float], expected: list[tuple[float, list[int]]]
) -> None:
    config = TrajectoryQueueConfig(start_columns=("memory",), gamma=GAMMA)
    own = (ColumnSpec("memory", "float32", (1,)),)
    columns = [c for c in OneStep().columns(SPEC, own) if c.name != "model_version"]
    buffer = config.build(make_schema(columns, length=6, lookahead=1), 0)
    count = sum(len(rows) for _, rows in expected)
    assert buffer.push(*stream_of(flags, memory)) == len(buffer) == count
    restored = config.build(make_schema(columns, length=6, lookahead=1), 0)
    restored.load_state(buffer.state())
    for one in (buffer, restored):
        batch = one.sample(count)
        histories = [
            obs[:-1][mask] for obs, mask in zip(batch["obs"][..., 0], batch["mask"], strict=True)
        ]
        starts = batch["memory"][:, 0].tolist()
        assert list(zip(starts, [t.tolist() for t in histories], strict=True)) == expected
        for k, t in np.argwhere(batch["mask"]):
            assert batch["obs"][k, t + 1, 0] == batch["obs"][k, t, 0] + 1, "what followed"


def test_stacks_of_frames_are_whole_again() -> None:
    histories, messages = played([["", "", "T", "", "C", "", "", ""]], frame_stack=3)
    buffer = queue(frame_stack=3)
    pushed(buffer, messages)
    batch = buffer.sample(100)
    history: dict[float, list[float]] = {}
    before: list[float] = []
    for t in histories[0]:
        before.append(t.obs)
        history[t.obs] = ([before[0]] * 2 + before)[-3:]
        if t.terminated or t.truncated:
            history[t.next_obs] = ([before[0]] * 2 + [*before, t.next_obs])[-3:]
            before = []
    for b, t in np.argwhere(batch["mask"]):
        assert batch["obs"][b, t, :, 0].tolist() == history[float(batch["obs"][b, t, -1, 0])]
        after = float(batch["obs"][b, t + 1, -1, 0])
        if after in history:
            assert batch["obs"][b, t + 1, :, 0].tolist() == history[after]


def test_segments_must_look_ahead() -> None:
    columns = [ColumnSpec("obs", "float32", (1,)), ColumnSpec("flags", "uint8")]
    with pytest.raises(ConfigError, match="lookahead"):
        TrajectoryQueueConfig().build(make_schema(columns, length=4, lookahead=0), 0)
