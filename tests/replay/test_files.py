"""Replays are saved whole, loaded into any kind of replay, and refused where they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.run_services import SaveConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps
from asyncrl.replay.files import load_replay, save_replay
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from tests.replay.segments import streams
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


@given(streams())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_same_kind_holds_the_same_afterwards(tmp_path: Path, ends: list[list[str]]) -> None:
    config = UniformReplayConfig(capacity=40, n_step=3)
    source = filled(config, [env * 3 for env in ends])
    assert save_replay(source, tmp_path / "data") == tmp_path / "data"
    loaded = load_replay(tmp_path / "data", config, seed=1)
    assert len(loaded) == len(source)
    assert transitions(loaded) == transitions(source)


def test_draws_from_the_seed_that_was_asked_for(tmp_path: Path) -> None:
    save_replay(filled(UNIFORM), tmp_path / "data")
    draws = [
        load_replay(tmp_path / "data", UNIFORM, seed=seed).sample(30)["obs"].tobytes()
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


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


def test_segments_become_sequences_if_they_look_ahead_that_far(tmp_path: Path) -> None:
    config = SequenceReplayConfig(capacity=200, sequence_length=2, stride=1)
    save_replay(filled(UNIFORM), tmp_path / "data")
    loaded = load_replay(tmp_path / "data", config, seed=0)
    assert len(loaded) == len(filled(config)) > 0
    with pytest.raises(ConfigError, match="look 3 ahead"):
        load_replay(tmp_path / "data", SequenceReplayConfig(sequence_length=20), seed=0)


def test_what_waits_in_a_queue_becomes_a_replay(tmp_path: Path) -> None:
    queue = TrajectoryQueueConfig(capacity=200).build(schema(LENGTH, 1), 0)
    for message in play(SOME, make_outbox(2, LENGTH, 1))[1]:
        queue.push(message.columns, message.rows)
    save_replay(queue, tmp_path / "data")
    loaded = load_replay(tmp_path / "data", UniformReplayConfig(capacity=200), seed=0)
    assert len(loaded) == len(queue) == 84


def test_order_of_arrival_survives_another_kind(tmp_path: Path) -> None:
    small = UniformReplayConfig(capacity=24, n_step=3)
    source = filled(small)  # has gone around
    save_replay(source, tmp_path / "data")
    loaded = load_replay(tmp_path / "data", PrioritizedReplayConfig(capacity=24, n_step=3), seed=0)
    first = play([[""] * 8], make_outbox(1, LENGTH, LOOKAHEAD))[1][0]
    for buffer in (source, loaded):
        buffer.push(first.columns, first.rows)
    assert transitions(source) == transitions(loaded), "the same segments made room"


@pytest.mark.parametrize("kind", [UniformReplayConfig, PrioritizedReplayConfig])
def test_too_small_a_replay_is_refused(tmp_path: Path, kind: type[UniformReplayConfig]) -> None:
    save_replay(filled(UNIFORM), tmp_path / "data")
    with pytest.raises(CheckpointError, match=r"set .*to at least 1\d\d"):
        load_replay(tmp_path / "data", kind(capacity=8, n_step=3), seed=0)


def test_damage_is_noticed_before_anything_is_made(tmp_path: Path) -> None:
    save_replay(filled(UNIFORM), tmp_path / "data")
    file = next((tmp_path / "data").glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match="damaged"):
        load_replay(tmp_path / "data", UNIFORM, seed=0)
    file.write_bytes(raw[:-5])
    with pytest.raises(CheckpointError, match="bytes"):
        load_replay(tmp_path / "data", UNIFORM, seed=0)


def test_missing_replay_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        load_replay(tmp_path / "nothing", UNIFORM, seed=0)


def run(checkpoint_dir: Path, *, save: bool) -> None:
    train_sync(
        DQNConfig(hidden=(8,), device="cpu"),
        EnvConfig(id="CartPole-v1", n_envs=2).build,
        SyncConfig(
            replay=UniformReplayConfig(capacity=500),
            trainer=TrainerConfig(warmup_env_steps=20, batch_size=8),
            save=SaveConfig(interval_opt_steps=20, replay=save),
            evaluate=EvaluationConfig(where="off"),
        ),
        checkpoint_dir=checkpoint_dir,
        stop=MaxEnvSteps(200),
    )


def test_checkpoint_of_a_run_is_a_data_set(tmp_path: Path) -> None:
    run(tmp_path, save=True)
    newest = load_replay(tmp_path, UniformReplayConfig(capacity=500), seed=0)
    assert len(newest) >= 190, "of 200 steps; the newest wait for their successors"
    first = Checkpointer(tmp_path).names()[0]
    earlier = load_replay(tmp_path / first, UniformReplayConfig(capacity=500), seed=0)
    assert 0 < len(earlier) < len(newest)


def test_checkpoint_without_a_replay_says_so(tmp_path: Path) -> None:
    run(tmp_path, save=False)
    with pytest.raises(CheckpointError, match="save_replay"):
        load_replay(tmp_path, UNIFORM, seed=0)


def test_saving_deletes_no_other_data(tmp_path: Path) -> None:
    buffer = filled(UNIFORM)
    names = [str(number) for number in range(1, 6)]
    for name in names:
        save_replay(buffer, tmp_path / name)
    assert Checkpointer(tmp_path).names() == names


def test_what_lies_beside_it_stays(tmp_path: Path) -> None:
    precious = tmp_path / ".data-original/precious.csv"
    precious.parent.mkdir()
    precious.write_text("1,2,3")
    for _ in range(2):
        save_replay(filled(UNIFORM), tmp_path / "pendulum")
    assert precious.read_text() == "1,2,3"


def test_replay_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    class Own:
        def __len__(self) -> int:
            return 0

    with pytest.raises(CheckpointError, match="Own cannot be saved"):
        save_replay(Own(), tmp_path / "data")  # type: ignore[arg-type]
