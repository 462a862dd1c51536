"""Replays are saved whole, loaded into any kind of replay, and refused where they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncrl.core.errors import CheckpointError
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.replay.files import load_replay, save_replay
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.support.streams import make_outbox, play, schema

LENGTH, LOOKAHEAD = 4, 3
SOME = [["", "", "T", "", "C", "", ""] * 6, [""] * 42]
UNIFORM = UniformReplayConfig(capacity=200, n_step=3)


def filled(config: ReplayBufferConfig, ends: list[list[str]] | None = None) -> ReplayBuffer:
    ends = ends or SOME
    buffer = config.build(schema(LENGTH, LOOKAHEAD), 0)
    for message in play(ends, make_outbox(len(ends), LENGTH, LOOKAHEAD))[1]:
        buffer.push(message.columns, message.rows)
    return buffer


def transitions(buffer: ReplayBuffer) -> set[tuple[float, ...]]:
    batch = buffer.sample(30 * len(buffer))
    names = "obs", "action", "reward", "next_obs", "discount"
    rows = np.concatenate([batch[name].reshape(30 * len(buffer), -1) for name in names], axis=1)
    return set(map(tuple, rows.tolist()))


def test_priorities_are_kept(tmp_path: Path) -> None:
    config = PrioritizedReplayConfig(capacity=200, n_step=3, alpha=1.0)
    source = filled(config)
    number = source.sample(1)["index"]
    everyone = np.arange(200)
    source.update_priorities(everyone, np.full(200, 1e-6))  # type: ignore[attr-defined]
    source.update_priorities(number, np.array([1e6]))  # type: ignore[attr-defined]
    save_replay(source, tmp_path / "data")
    loaded = load_replay(tmp_path / "data", config, seed=3)
    assert loaded._priorities.beta == config.beta, "it rises over the samples of a run"  # type: ignore[attr-defined]
    assert (loaded.sample(50)["index"] == number).mean() > 0.9


@pytest.mark.parametrize(
    "config",
    [
        PrioritizedReplayConfig(capacity=200, n_step=3),
        UniformReplayConfig(capacity=300, n_step=3),
        UniformReplayConfig(capacity=200, n_step=1),
    ],
    ids=["prioritized", "larger", "fewer steps"],
)
def test_segments_fill_a_replay_of_other_settings(
    tmp_path: Path, config: ReplayBufferConfig
) -> None:
    save_replay(filled(UNIFORM), tmp_path / "data")
    loaded = load_replay(tmp_path / "data", config, seed=0)
    expected = filled(config)
    assert len(loaded) == len(expected)
    assert transitions(loaded) == transitions(expected)


def test_what_waits_in_a_queue_becomes_a_replay(tmp_path: Path) -> None:
    queue = TrajectoryQueueConfig(capacity=200).build(schema(LENGTH, 1), 0)
    for message in play(SOME, make_outbox(2, LENGTH, 1))[1]:
        queue.push(message.columns, message.rows)
    save_replay(queue, tmp_path / "data")
    loaded = load_replay(tmp_path / "data", UniformReplayConfig(capacity=200), seed=0)
    assert len(loaded) == len(queue) == 84


@pytest.mark.parametrize("kind", [UniformReplayConfig, PrioritizedReplayConfig])
def test_too_small_a_replay_is_refused(tmp_path: Path, kind: type[UniformReplayConfig]) -> None:
    save_replay(filled(UNIFORM), tmp_path / "data")
    with pytest.raises(CheckpointError, match=r"set .*to at least 1\d\d"):
        load_replay(tmp_path / "data", kind(capacity=8, n_step=3), seed=0)


def test_replay_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    class Own:
        def __len__(self) -> int:
            return 0

    with pytest.raises(CheckpointError, match="Own cannot be saved"):
        save_replay(Own(), tmp_path / "data")  # type: ignore[arg-type]


def test_missing_replay_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        load_replay(tmp_path / "nothing", UNIFORM, seed=0)
