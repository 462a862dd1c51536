"""Replays in files: saved from a run, loaded into any kind of replay.

    save_replay(trainer.buffer, Path("data/pendulum"))
    buffer = load_replay(Path("data/pendulum"), UniformReplayConfig(capacity=200_000), seed=0)

A checkpoint of a run holds its replay, too, unless `save_replay` is off: `load_replay` takes the
path of one checkpoint, or that of their directory, whose newest one it loads.

The files are checkpoints: arrays beside a manifest with their hashes, written so that a crash
leaves no half of one. All of it is checked before a buffer is made, and nothing is unpickled. The
path is a link to a hidden folder beside it: to copy it somewhere else, take `cp -rL`.
"""

from __future__ import annotations

from pathlib import Path

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.replay_buffer import (
    REPLAY,
    KeepsState,
    ReplayBuffer,
    ReplayBufferConfig,
    replay_groups,
)
from asyncrl.replay_buffers._state import (
    check_columns,
    check_numbers,
    kind_of,
    push_saved,
    schema_of,
)


def save_replay(buffer: ReplayBuffer, path: Path) -> Path:
    """Write a replay to disk, piece by piece; return where it is.

    What was at `path` before is replaced when all is written.
    """
    if not isinstance(buffer, KeepsState):
        raise CheckpointError(
            f"a {type(buffer).__name__} cannot be saved: it has no method `state()` that returns "
            "what it holds"
        )
    meta = {"kind": type(buffer).__name__, "size": len(buffer)}
    return Checkpointer(path.parent).save(path.name, replay_groups(buffer, save=True), meta)


def load_replay(path: Path, config: ReplayBufferConfig, *, seed: int) -> ReplayBuffer:
    """Return a buffer with the segments of a saved one, which draws from `seed` on.

    Where it is of the same kind, priorities are those that were saved; else all its transitions
    are new to it. Raises `CheckpointError` if what was saved is not whole, or has no room.
    """
    state = _read(path).groups.get(REPLAY)
    if state is None:
        raise CheckpointError(
            f"{path} holds no replay; runs save theirs with every checkpoint unless "
            "save_replay is off"
        )
    schema = schema_of(state)
    buffer = config.build(schema, seed)
    if isinstance(buffer, KeepsState) and kind_of(state) == type(buffer).__name__:
        own = buffer.state()
        buffer.load_state({**state, **{k: v for k, v in own.items() if k == "random"}})
        return buffer
    n_segments = check_columns(state, schema)
    if n_segments * schema.length > buffer.capacity:
        raise CheckpointError(
            f"{path} has {n_segments} segments, and replay.capacity={config.capacity} is too "
            f"small for them; set it to at least {n_segments * schema.length}"
        )
    first = 0
    if "numbers" in state and n_segments:
        first = int(check_numbers("numbers", state["numbers"], 3, "int64")[0]) % n_segments
    push_saved(state, schema, buffer.push, first)
    return buffer


def _read(path: Path) -> Checkpoint:
    parent = Checkpointer(path.parent)
    if path.name in parent.names():
        return parent.load(path.name, mapped=[REPLAY])
    if Checkpointer(path).names():
        return Checkpointer(path).load_latest(mapped=[REPLAY])
    raise CheckpointError(f"there is neither a saved replay nor a run's checkpoint at {path}")
