"""The contract of replay: stores transitions, chooses samples. No threads, no transports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

from asyncrl.core.agent import BatchKind, ReturnsPriorities, require_agent_config
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentSchema
from asyncrl.core.types import Array, Arrays, ArrayStream, Columns, IntArray, Params

REPLAY = "replay"
"""The group of a checkpoint that holds the replay."""

LARGEST_WEIGHT = "largest_weight"
"""Column of what a prioritized buffer has divided importance weights by, equal in all rows."""


PART_BYTES = 256 << 10
"""Maximum size of the part of a message that is stored at once beside a thread that samples."""


class ReplayBuffer(Protocol):
    """Keeps the newest transitions and returns batches of them. Not thread-safe."""

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy whole segments in, overwriting the oldest; return the number of transitions.

        `columns` are (segments, rows, ...); `rows` is the number of filled rows of each.
        """
        ...

    def sample(self, batch_size: int) -> Columns:
        """Return a batch, in arrays that belong to the caller.

        It has `obs`, `action`, `reward` (discounted sum over n steps), `next_obs` (after them),
        `discount` (factor of the bootstrap value at `next_obs`: 0 where the episode terminated),
        `model_version` (that acted), and the extra columns of the agent.

        A prioritized buffer, `AcceptsPriorities`, adds `weight` (the importance weight of each row)
        and `index` (to return with its TD error). Several learners with a buffer each also need
        `largest_weight` (what the weights were divided by). Buffers of sequences and of
        trajectories document their own layouts. Those that return each transition once return
        approximately this number: whole segments. Columns that are kept on a device are torch
        tensors there instead of arrays.
        """
        ...

    def __len__(self) -> int:
        """Number of transitions, or sequences, that can be sampled now."""
        ...

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        ...

    @property
    def once(self) -> bool:
        """Whether it returns each transition once."""
        ...


@runtime_checkable
class StagesSegments(Protocol):
    """A replay buffer that is written to while another thread samples.

    Where a learner has one, actors' experience comes by `stage`, and `push` is not called: a
    subclass that overrides one overrides the other, too.
    """

    def stage(
        self, columns: Columns, rows: IntArray, pause: Callable[[], object]
    ) -> Callable[[], int]:
        """Copy segments to where nothing is sampled, while another thread may use the buffer.

        Returns the rest of the push, to be called once, before the next push and while no other
        thread uses the buffer. Both together do what `push` does. More segments than one that
        exceed `PART_BYTES` may be copied in the rest.

        `pause` is called between copies. There the caller may wait, so that the two threads do not
        compete for the interpreter.
        """
        ...


@runtime_checkable
class AcceptsPriorities(Protocol):
    """A replay buffer, or a proxy of one, that takes TD errors."""

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Update the priorities of rows of an earlier batch; skip overwritten rows."""
        ...


@runtime_checkable
class CountsSamples(Protocol):
    """A replay buffer whose batches depend on how many samples there were before."""

    def resume_at(self, samples: int) -> None:
        """Count on from this number of samples of the run, which another buffer has returned."""
        ...


@runtime_checkable
class SavesState(Protocol):
    """A replay buffer whose state can be saved and loaded."""

    def state(self) -> Params:
        """Return a copy of all that later samples depend on, as named arrays.

        Rows in their order, priorities, and the state of the random generator.
        """
        ...

    def load_state(self, state: Params) -> None:
        """Load the whole state, or raise `CheckpointError` and change nothing.

        Later samples are then those of the saved buffer, bit for bit.
        """
        ...


@runtime_checkable
class StreamsState(SavesState, Protocol):
    """A replay buffer too large to copy, whose state can be saved during training."""

    def stream(self, room_bytes: int | None = None) -> ArrayStream:
        """Return its current state, piece by piece.

        Another thread may read the pieces while this one pushes and samples. Rows that are
        overwritten meanwhile are kept for it, up to `room_bytes` at once; None keeps all. Beyond it
        the oldest rows are missing from the state.
        """
        ...


class ReplayBufferConfig(Protocol):
    """Builds a buffer once the schema of segments is known."""

    @property
    def lookahead(self) -> int:
        """Number of rows that a segment needs beyond those that can be sampled."""
        ...

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        ...

    @property
    def once(self) -> bool:
        """Whether it returns each transition once, as on-policy agents need."""
        ...

    def build(self, schema: SegmentSchema, seed: int) -> ReplayBuffer:
        """Allocate the buffer."""
        ...


@runtime_checkable
class DeclaresBatchKind(Protocol):
    """A replay's config that declares which kind of batches it returns."""

    batch_kind: ClassVar[BatchKind]
    """Must equal the agent's `learns_from`."""


_KINDS: Mapping[BatchKind, tuple[str, str]] = {
    "transitions": ("single transitions", "UniformReplayConfig or PrioritizedReplayConfig"),
    "sequences": (
        "sequences, sampled repeatedly",
        "SequenceReplayConfig or PrioritizedSequenceReplayConfig",
    ),
    "trajectories": ("trajectories, each once", "TrajectoryQueueConfig"),
}
"""Names of each kind in messages, and the replays that return it."""


def check_agent_and_replay(agent: object, replay: ReplayBufferConfig) -> None:
    """Raise if this is not an agent's config, or if the agent cannot use the replay's batches."""
    require_agent_config(agent)
    learns_from: BatchKind | None = getattr(agent, "learns_from", None)
    if learns_from is None or not isinstance(replay, DeclaresBatchKind):
        return
    if learns_from != replay.batch_kind:
        wanted, fitting = _KINDS[learns_from]
        raise ConfigError(
            f"{type(agent).__name__} learns from {wanted}, but {type(replay).__name__} returns "
            f"{_KINDS[replay.batch_kind][0]}; use {fitting} as replay, as the presets do"
        )


def transitions_per_sample(config: ReplayBufferConfig) -> int:
    """Return how many transitions bring one more item to sample: the stride of sequences, or 1."""
    return cast(int, getattr(config, "stride", 1))


SAMPLES_PER_INSERT = 8.0
"""How often a transition is sampled by default: as in DQN, batches of 32 in every fourth step."""


def usual_samples_per_insert(agent: object, replay: ReplayBufferConfig, batch_size: int) -> float:
    """Return how often each transition is sampled where the settings of a run do not say it.

    An agent's config may declare its number of optimisation steps per environment step.
    """
    opt_steps = getattr(agent, "opt_steps_per_env_step", SAMPLES_PER_INSERT / batch_size)
    return 1.0 if replay.once else float(opt_steps) * batch_size


def replay_groups(
    buffer: ReplayBuffer, *, save: bool, room_bytes: int | None = None
) -> dict[str, Arrays]:
    """Return the groups of a checkpoint that hold a replay: none if it is not or cannot be saved.

    `room_bytes` is as in `StreamsState.stream`.
    """
    if save and isinstance(buffer, StreamsState):
        return {REPLAY: buffer.stream(room_bytes)}
    return {REPLAY: buffer.state()} if save and isinstance(buffer, SavesState) else {}


def with_start_columns(
    config: ReplayBufferConfig, columns: Iterable[ColumnSpec]
) -> ReplayBufferConfig:
    """Return a replay config with the agent's start columns; raise if it cannot have any.

    `columns` are the agent's own. Those declared as start columns need not be listed in
    `replay.start_columns`, too.
    """
    kept: tuple[str, ...] | None = getattr(config, "start_columns", None)
    missing = [c.name for c in columns if c.start and c.name not in (kept or ())]
    if not missing:
        return config
    if kept is None or not is_dataclass(config):
        raise ConfigError(
            f"the agent needs its column {missing[0]!r} from the start of a sequence or a "
            f"trajectory, but {type(config).__name__} returns neither; use TrajectoryQueueConfig "
            "for an on-policy agent, SequenceReplayConfig or its prioritized form for any other"
        )
    return cast(ReplayBufferConfig, replace(config, start_columns=(*kept, *missing)))


def restore_replay(buffer: ReplayBuffer, groups: Mapping[str, Params], *, sampled: int = 0) -> bool:
    """Load a checkpoint's replay into a buffer; return whether there was one.

    Without one, the buffer counts on from the samples that the run has taken, `sampled`.
    """
    if REPLAY not in groups:
        if isinstance(buffer, CountsSamples):
            buffer.resume_at(sampled)
        return False
    if not isinstance(buffer, SavesState):
        raise CheckpointError(
            f"the checkpoint contains a replay, but {type(buffer).__name__} cannot load one: it "
            "has no load_state"
        )
    try:
        buffer.load_state(groups[REPLAY])
    except CheckpointError as error:
        raise CheckpointError(
            f'{error}; or skip the saved replay and fill a new one (resume="without replay", on '
            "the command line --no-load-replay)"
        ) from error
    return True


def drawn_singly(buffer: ReplayBuffer) -> bool:
    """Whether batches must be sampled one by one instead of several at once.

    Whole segments cannot be divided, and with priorities each batch changes the next one.
    """
    return buffer.once or isinstance(buffer, AcceptsPriorities)


def in_batches(together: Columns, batch_size: int) -> list[Columns]:
    """Divide rows that were sampled at once into batches; they share memory."""
    n_rows = len(next(iter(together.values())))
    parts = [slice(first, first + batch_size) for first in range(0, n_rows, batch_size)]
    return [{name: column[part] for name, column in together.items()} for part in parts]


def check_priorities(agent: object, buffer: ReplayBuffer) -> None:
    """Raise if one of agent and buffer computes or stores priorities, and the other has none."""
    if getattr(agent, "stores_values", False) and not isinstance(buffer, AcceptsPriorities):
        raise ConfigError(
            f"agent.actor_priorities is on, but {type(buffer).__name__} has no priorities; set it "
            "to False, or use a prioritized replay such as replay=PrioritizedReplayConfig()"
        )
    if isinstance(buffer, AcceptsPriorities) and not isinstance(agent, ReturnsPriorities):
        raise ConfigError(
            f"{type(buffer).__name__} needs an agent with a method `priorities()` that returns the "
            f"absolute TD error of each row of the newest batch; {type(agent).__name__} has none, "
            "so use uniform replay with it"
        )


def pass_priorities_on(agent: object, batch: Columns, buffer: object) -> None:
    """Pass the TD errors of the batch that the agent has just learned from to a prioritized buffer.

    Batches of other buffers have no column `index`; nothing is done with them.
    """
    if "index" in batch and isinstance(agent, ReturnsPriorities):
        if not isinstance(buffer, AcceptsPriorities):
            raise ConfigError(
                f"batches of {type(buffer).__name__} have the column 'index', so it must take "
                "priorities, but its class has no method `update_priorities(index, td_error)`; "
                "define it there (`__getattr__` does not count), or omit the column"
            )
        buffer.update_priorities(batch["index"], agent.priorities())
