"""Storage and choice of samples; where data comes from, and threads, are others' business."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from asyncrl.core.agent import BatchKind, LearnsFrom, TellsPriorities, require_agent_config
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentSchema
from asyncrl.core.types import Array, Arrays, ArrayStream, Columns, IntArray, Params

REPLAY = "replay"
"""The group of a checkpoint that holds the replay."""


class ReplayBuffer(Protocol):
    """Keeps the newest transitions and gives out batches of them. Not thread-safe on its own."""

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy whole segments in, the oldest ones making room; return how many transitions.

        `columns` are (segments, rows, ...); `rows` says how many rows of each are filled.
        """
        ...

    def sample(self, batch_size: int) -> Columns:
        """Return a batch, in arrays that are the caller's.

        It has `obs`, `action`, `reward` (discounted sum over the steps taken together),
        `next_obs` (after them), `discount` (what to multiply the bootstrap value at `next_obs`
        with: 0 where the episode terminated), `model_version` (that acted) and the columns that
        the agent itself had stored.

        A prioritized one, `TakesPriorities`, adds `weight` (of each row in the loss) and `index`
        (to be given back with its TD error). Those of sequences and of trajectories document
        layouts of their own, and those that hand out each transition once return about as many as
        asked for: whole segments of them. Columns that are kept on a device are torch's tensors
        there, in place of arrays.
        """
        ...

    def __len__(self) -> int:
        """Transitions, or sequences of them, that may be sampled now."""
        ...

    @property
    def capacity(self) -> int:
        """Transitions that it holds at the most."""
        ...

    @property
    def once(self) -> bool:
        """Whether it hands out each transition once."""
        ...


@runtime_checkable
class TakesPriorities(Protocol):
    """A replay buffer, or what stands before one, that is told how wrong the agent was."""

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Take in TD errors of rows of some batch; those that are no longer here are left out."""
        ...


@runtime_checkable
class KeepsState(Protocol):
    """A replay buffer that can go on where another one of its kind was left."""

    def state(self) -> Params:
        """Return all that later samples depend on, as named arrays: a copy.

        Rows in their order, priorities, and the state of the generator that draws.
        """
        ...

    def load_state(self, state: Params) -> None:
        """Take all of it, or raise `CheckpointError` and change nothing.

        What is sampled from then on is what would have been sampled there, bit for bit.
        """
        ...


@runtime_checkable
class StreamsState(KeepsState, Protocol):
    """One whose state is too large to be copied whole, and can be saved while it goes on."""

    def stream(self, room_bytes: int | None = None) -> ArrayStream:
        """Return its state as it is now, piece by piece.

        Another thread may take the pieces while this one pushes and samples. What is overwritten
        meanwhile is kept for it: all of it, or no more than `room_bytes` at once. Beyond that rows
        are given up, the oldest ones first, and the state is one that lacks them.
        """
        ...


class ReplayBufferConfig(Protocol):
    """Builds a buffer once the segments are known."""

    @property
    def lookahead(self) -> int:
        """Rows that a segment must carry beyond those that may be sampled."""
        ...

    @property
    def capacity(self) -> int:
        """Transitions to hold at the most."""
        ...

    @property
    def once(self) -> bool:
        """Whether it hands out each transition once, as on-policy agents need it."""
        ...

    def build(self, schema: SegmentSchema, seed: int) -> ReplayBuffer:
        """Allocate it."""
        ...


@runtime_checkable
class HandsOut(Protocol):
    """A replay's config that says which kind of batches it hands out."""

    hands_out: ClassVar[BatchKind]
    """What an agent's `learns_from` must be."""


_KINDS: Mapping[BatchKind, tuple[str, str]] = {
    "transitions": ("single transitions", "UniformReplayConfig or PrioritizedReplayConfig"),
    "sequences": (
        "sequences, drawn again and again",
        "SequenceReplayConfig or PrioritizedSequenceReplayConfig",
    ),
    "trajectories": ("trajectories, each once", "TrajectoryQueueConfig"),
}
"""What each kind is called, and which replays hand it out."""


def check_agent_and_replay(agent: object, replay: ReplayBufferConfig) -> None:
    """Refuse what is no agent's settings, and a replay whose batches such an agent cannot use."""
    require_agent_config(agent)
    if not isinstance(agent, LearnsFrom) or not isinstance(replay, HandsOut):
        return
    if agent.learns_from != replay.hands_out:
        wanted, fitting = _KINDS[agent.learns_from]
        raise ConfigError(
            f"{type(agent).__name__} learns from {wanted}, and {type(replay).__name__} hands out "
            f"{_KINDS[replay.hands_out][0]}; use {fitting} as replay, as the presets do"
        )


def replay_groups(
    buffer: ReplayBuffer, *, save: bool, room_bytes: int | None = None
) -> dict[str, Arrays]:
    """Return the groups in which a checkpoint keeps a replay: none if it shall not, or cannot.

    `room_bytes` is as in `StreamsState.stream`.
    """
    if save and isinstance(buffer, StreamsState):
        return {REPLAY: buffer.stream(room_bytes)}
    return {REPLAY: buffer.state()} if save and isinstance(buffer, KeepsState) else {}


def with_start_columns(
    config: ReplayBufferConfig, columns: Iterable[ColumnSpec]
) -> ReplayBufferConfig:
    """Return a replay that hands out start columns as such; refuse one that has no beginnings.

    `columns` are the agent's own. Those that it declares as start columns need not be named in
    `replay.start_columns` as well.
    """
    kept: tuple[str, ...] | None = getattr(config, "start_columns", None)
    missing = [c.name for c in columns if c.start and c.name not in (kept or ())]
    if not missing:
        return config
    if kept is None or not is_dataclass(config):
        raise ConfigError(
            f"the agent needs its column {missing[0]!r} as it was where a sequence or a trajectory "
            f"starts, and {type(config).__name__} hands out neither; use TrajectoryQueueConfig for "
            "an on-policy agent, SequenceReplayConfig or its prioritized form for any other"
        )
    filled: Any = replace(config, start_columns=(*kept, *missing))
    return filled


def restore_replay(buffer: ReplayBuffer, groups: Mapping[str, Params]) -> bool:
    """Put what a checkpoint keeps of a replay into a buffer; return whether it does."""
    if REPLAY not in groups:
        return False
    if not isinstance(buffer, KeepsState):
        raise CheckpointError(
            f"the checkpoint holds a replay, and {type(buffer).__name__} cannot take one: it has "
            "no load_state"
        )
    try:
        buffer.load_state(groups[REPLAY])
    except CheckpointError as error:
        raise CheckpointError(
            f'{error}; or leave the saved replay out and fill another one (resume="without '
            'replay", on the command line --no-load-replay)'
        ) from error
    return True


def drawn_singly(buffer: ReplayBuffer) -> bool:
    """Whether batches are to be drawn one by one, and not cut out of what was sampled at once.

    Whole segments cannot be cut so, and with priorities each batch changes who comes next.
    """
    return buffer.once or isinstance(buffer, TakesPriorities)


def in_batches(together: Columns, batch_size: int) -> list[Columns]:
    """Cut what was sampled at once into batches, which share its memory."""
    n_rows = len(next(iter(together.values())))
    parts = [slice(first, first + batch_size) for first in range(0, n_rows, batch_size)]
    return [{name: column[part] for name, column in together.items()} for part in parts]


def check_priorities(agent: object, buffer: ReplayBuffer) -> None:
    """Refuse a prioritized buffer for an agent that cannot serve it."""
    if isinstance(buffer, TakesPriorities) and not isinstance(agent, TellsPriorities):
        raise ConfigError(
            f"{type(buffer).__name__} needs an agent with a method `priorities()` that returns the "
            f"absolute TD error of each row of the newest batch; {type(agent).__name__} has none, "
            "so use uniform replay with it"
        )


def pass_priorities_on(agent: object, batch: Columns, buffer: object) -> None:
    """Tell a prioritized buffer how wrong the agent was about the batch it has just learned from.

    Does nothing with batches of other buffers, which have no column `index`.
    """
    if "index" in batch and isinstance(agent, TellsPriorities):
        if not isinstance(buffer, TakesPriorities):
            raise ConfigError(
                f"batches of {type(buffer).__name__} have the column 'index', so it must take "
                "priorities, and its class has no method `update_priorities(index, td_error)`; "
                "define it there (what `__getattr__` finds does not count), or leave the column out"
            )
        buffer.update_priorities(batch["index"], agent.priorities())
