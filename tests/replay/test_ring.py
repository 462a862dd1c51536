"""What all replays share: stacks of frames, bytes, files; checked through uniform replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.replay import ring_config
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.replay.segments import streams
from tests.support.streams import Transition, make_outbox, play, schema


@pytest.mark.parametrize(
    "config",
    [
        UniformReplayConfig(capacity=7),
        PrioritizedReplayConfig(capacity=7),
        SequenceReplayConfig(capacity=7, sequence_length=2, stride=1),
        TrajectoryQueueConfig(capacity=7),
    ],
)
def test_replay_that_would_hold_more_than_asked_for_is_refused(
    config: UniformReplayConfig | TrajectoryQueueConfig,
) -> None:
    segments = schema(8, config.lookahead)
    with pytest.raises(ConfigError, match=r"replay\.capacity=7 has no room for .* 8 transitions"):
        config.build(segments, 0)
    assert replace(config, capacity=8).build(segments, 0).capacity == 8


# --- stacks of frames -----------------------------------------------------------------------------


def stacks_of(
    history: list[Transition], n_frames: int
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the stacks before and after each step, kept as an actor's wrapper would."""
    stack: list[float] = []
    for t in history:
        stack = stack or [t.obs] * n_frames
        after = [*stack[1:], t.next_obs]
        yield stack, after
        stack = [] if t.terminated or t.truncated else after


@pytest.mark.parametrize("config", [UniformReplayConfig(), PrioritizedReplayConfig()])
@given(streams(), st.integers(1, 6), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_stacks_are_built_again(
    config: UniformReplayConfig, ends: list[list[str]], length: int, n_frames: int
) -> None:
    buffer = config.build(schema(length, 1, n_frames), 0)
    histories, messages = play(ends, make_outbox(len(ends), length, 1, n_frames))
    for message in messages:
        assert buffer.push(message.columns, message.rows) == message.transitions
    expected = {}
    for env in histories:
        for step, (before, after) in zip(env, stacks_of(env, n_frames), strict=True):
            expected[step.obs] = (before, after)
    batch = buffer.sample(30 * len(expected))
    assert batch["obs"].shape == (30 * len(expected), n_frames, 1)
    for obs, next_obs in zip(batch["obs"][..., 0], batch["next_obs"][..., 0], strict=True):
        assert (obs.tolist(), next_obs.tolist()) == expected[obs[-1]]
    assert set(batch["obs"][:, -1, 0].tolist()) == set(expected)


def test_bootstrap_stack_of_an_n_step_return_is_that_of_its_last_step() -> None:
    buffer = UniformReplayConfig(n_step=3).build(schema(4, 3, 2), 0)
    histories, messages = play([[""] * 20], make_outbox(1, 4, 3, 2), finish=False)
    for message in messages:
        buffer.push(message.columns, message.rows)
    where = {t.obs: i for i, t in enumerate(histories[0])}
    batch = buffer.sample(50)
    for obs, next_obs in zip(batch["obs"][:, -1, 0], batch["next_obs"][..., 0], strict=True):
        at = where[float(obs)]
        assert next_obs.tolist() == [histories[0][at + 2].obs, histories[0][at + 3].obs]


# --- bytes ----------------------------------------------------------------------------------------


def atari(frame_stack: int = 4, n_step: int = 3) -> SegmentSchema:
    columns = [
        ColumnSpec("obs", "uint8", (84, 84)),
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("model_version", "int32"),
    ]
    return make_schema(columns, length=64, lookahead=n_step, frame_stack=frame_stack)


@pytest.mark.parametrize("make", [UniformReplayConfig, PrioritizedReplayConfig])
def test_million_stacks_take_little_more_than_a_million_frames(
    make: type[UniformReplayConfig],
) -> None:
    config, frames = make(capacity=1_000_000, n_step=3), 1_000_000 * 84 * 84
    assert 1.0 < config.nbytes(atari()) / frames <= 1.15
    short = replace(atari(), length=32)
    assert config.nbytes(short) / frames > 1.15, "64 rows are what the page on the replay asks for"


@pytest.mark.parametrize(
    "config", [UniformReplayConfig(capacity=999), SequenceReplayConfig(capacity=999)]
)
def test_bytes_are_known_before(config: UniformReplayConfig) -> None:
    segments = schema(4, config.lookahead)
    assert config.nbytes(segments) == config.build(segments, 0)._ring.nbytes


def test_replay_larger_than_memory_is_refused() -> None:
    config = UniformReplayConfig(capacity=10**9)
    needed = config.nbytes(atari())
    with pytest.raises(ConfigError, match=r"replay\.capacity=1000000000 needs") as refused:
        config.build(atari(), 0)
    words = str(refused.value)
    assert f"{needed:,} bytes" in words
    assert "are available" in words
    assert all(f"replay.{way}" in words for way in ("capacity", "n_step", "memory_map"))


def test_memory_is_not_taken_before_it_is_written() -> None:
    config = UniformReplayConfig(capacity=100_000)
    process = psutil.Process()
    before = process.memory_info().rss
    buffer = config.build(atari(), 0)
    assert process.memory_info().rss - before < 0.1 * buffer.nbytes


# --- files ----------------------------------------------------------------------------------------


def test_file_holds_the_columns_and_has_no_name(tmp_path: Path) -> None:
    mapped = UniformReplayConfig(capacity=60, memory_map=tmp_path).build(schema(4, 1), 3)
    plain = UniformReplayConfig(capacity=60).build(schema(4, 1), 3)
    assert not list(tmp_path.iterdir())
    for message in play([["", "", "T"] * 40] * 2, make_outbox(2, 4, 1))[1]:
        mapped.push(message.columns, message.rows)
        plain.push(message.columns, message.rows)
    expected = plain.sample(64)
    for name, column in mapped.sample(64).items():
        np.testing.assert_array_equal(column, expected[name])
    assert mapped.nbytes == plain.nbytes
    assert all(column.flags.aligned for column in mapped._ring.columns.values())


def test_file_that_does_not_fit_its_disk_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ring_config.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs a file of .*1,000 bytes .*are free in"):
        UniformReplayConfig(memory_map=tmp_path).build(atari(), 0)
