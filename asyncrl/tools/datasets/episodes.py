"""Episodes in arrays become the content of a replay buffer, as if actors had played them.

    episodes = [Episode(observations=obs, actions=actions, rewards=rewards, terminated=True), ...]
    buffer = fill_buffer(episodes, spec, UniformReplayConfig(capacity=200_000), seed=0)

Episodes are played back through the step processor and the outbox that actors use, several at once.
Final observations, truncation, stacked frames and observations with several fields are therefore
stored as actors store them. Does not know where episodes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import Step, make_one_step
from asyncrl.core.agent import Act
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import Peer
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.core.segment import (
    DISCOUNTED_RETURN,
    ColumnSpec,
    SegmentConfig,
    SegmentSchema,
    make_schema,
)
from asyncrl.core.types import ActorId, Array, ModelVersion

Observations = Array | Mapping[str, "Observations"] | tuple["Observations", ...]
"""Arrays with the same leading axis: a single one, or the fields of a Dict or Tuple."""

_REWARD = BoxSpec((), "float32", np.array(-np.inf), np.array(np.inf))

_STREAMS = 64
"""Episodes played back at once. A step of all of them costs little more than a step of one."""

_DATA_SET = Peer(actor_id=ActorId(0), incarnation=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """T steps from a reset on, and the observation after the last one."""

    observations: Observations
    """(T + 1, ...), the last one included. For `Dict` and `Tuple` spaces: dicts and tuples of such
    arrays."""

    actions: Array
    """(T, ...) as policies choose them; `Discrete` actions count from 0."""

    rewards: Array
    """(T,)"""

    terminated: bool
    """Whether the environment ended the episode in the last step. If not, it was truncated there,
    and values bootstrap from the last observation."""


def fill_buffer(
    episodes: Iterable[Episode],
    spec: EnvSpec,
    replay: ReplayBufferConfig,
    *,
    segment: SegmentConfig | None = None,
    extras: Sequence[ColumnSpec] = (),
    seed: int,
) -> ReplayBuffer:
    """Return a buffer that holds all the episodes.

    Args:
        episodes: Any number of them; iterated once.
        spec: Spec of the environment.
        replay: Settings of the buffer.
        segment: How streams of episodes are cut into segments; set frame stacks here.
        extras: Columns that the agent needs, from its config's `extra_columns(spec)`.
        seed: Seed of the buffer's sampling.

    Raises:
        ConfigError: If an episode does not fit the spec, or if the buffer is too small.
    """
    segment = segment or SegmentConfig()
    schema = make_schema(
        make_one_step(segment, extras).columns(spec, tuple(extras)),
        length=segment.length,
        lookahead=replay.lookahead,
        frame_stack=segment.frame_stack,
    )
    buffer = replay.build(schema, seed)
    push_episodes(episodes, spec, buffer, schema, segment)
    return buffer


def push_episodes(
    episodes: Iterable[Episode],
    spec: EnvSpec,
    buffer: ReplayBuffer,
    schema: SegmentSchema,
    segment: SegmentConfig,
) -> int:
    """Push episodes into a buffer with segments of that schema; return their transitions.

    Raises `ConfigError` if the buffer is too small for all of them.
    """
    own = {column.name for column in make_one_step(segment, ()).columns(spec, ())}
    extras = tuple(column for column in schema.columns if column.name not in own)
    if unknown := sorted({column.name for column in extras} - {DISCOUNTED_RETURN}):
        raise ConfigError(
            f"the agent needs the columns {unknown}, which episodes in arrays do not have: only an "
            "actor can store them; use an agent or settings that need none"
        )
    playback = _Playback(episodes, spec)
    outbox = Outbox(_DATA_SET, schema, segment, playback.n_streams)
    processor = make_one_step(segment, extras)
    sink = _Sink(buffer, schema)
    # A sequence sees that it begins an episode by the `END` row before it; each stream needs one.
    for rows in processor.finish(playback.obs):
        outbox.push(rows)
    while playback.any_left:
        for rows in processor.process(playback.step()):
            outbox.push(rows)
        sink.take(outbox)
    outbox.finish()  # every stream ends with an episode, and so with an `END` row
    sink.take(outbox)
    return sink.transitions


class _Sink:
    """Pushes an outbox's messages into a buffer, and raises before anything is overwritten."""

    def __init__(self, buffer: ReplayBuffer, schema: SegmentSchema) -> None:
        self._buffer, self._length = buffer, schema.length
        self._room = buffer.capacity
        self.transitions = 0

    def take(self, outbox: Outbox) -> None:
        while (message := outbox.take(ModelVersion(0), 0)) is not None:
            self._room -= self._length * len(message.rows)
            if self._room < 0:
                raise ConfigError(
                    f"replay.capacity={self._buffer.capacity} is too small for these episodes; set "
                    "it to at least the number of their steps, plus one for each episode, plus "
                    f"{_STREAMS * self._length}"
                )
            self.transitions += self._buffer.push(message.columns, message.rows)


class _Playback:
    """Plays episodes like the environments of a batch: one stream each, in lockstep."""

    def __init__(self, episodes: Iterable[Episode], spec: EnvSpec) -> None:
        self._source = (_read(number, episode, spec) for number, episode in enumerate(episodes))
        self._streams = [_Stream(first) for first in islice(self._source, _STREAMS)]
        self.n_streams = len(self._streams)
        if not self._streams:
            raise ConfigError("the data set has no episodes; a buffer needs at least one")

    @property
    def any_left(self) -> bool:
        """Whether any stream has steps left."""
        return any(stream.goes_on for stream in self._streams)

    @property
    def obs(self) -> Array:
        """The current observations of all streams."""
        return np.stack([stream.obs for stream in self._streams])

    def step(self) -> Step:
        """Return the next step of all streams; those that have ended do not count."""
        streams = self._streams
        stepped = np.array([stream.goes_on for stream in streams])
        obs = self.obs
        action = np.stack([stream.action for stream in streams])
        reward = np.array([stream.reward for stream in streams], np.float32) * stepped
        final_obs = np.stack([stream.next_obs for stream in streams])
        ends = np.array([stream.at_end for stream in streams]) & stepped
        terminated = ends & np.array([stream.episode.terminated for stream in streams])
        for stream in streams:
            stream.advance(self._source)
        outcome = EnvStep(self.obs, reward, terminated, ends & ~terminated, final_obs, stepped)
        return Step(obs, Act(action), outcome, ModelVersion(0))


@dataclass(frozen=True, slots=True)
class _Rows:
    """An episode in arrays as they are stored."""

    obs: Array
    action: Array
    reward: Array
    terminated: bool


class _Stream:
    """A sequence of episodes; it stays at its last step when none is left."""

    def __init__(self, first: _Rows) -> None:
        self.episode = first
        self._at = 0
        self.goes_on = True

    @property
    def obs(self) -> Array:
        obs: Array = self.episode.obs[self._at]
        return obs

    @property
    def next_obs(self) -> Array:
        next_obs: Array = self.episode.obs[self._at + 1]
        return next_obs

    @property
    def action(self) -> Array:
        action: Array = self.episode.action[self._at]
        return action

    @property
    def reward(self) -> Array:
        reward: Array = self.episode.reward[self._at]
        return reward

    @property
    def at_end(self) -> bool:
        return self._at + 1 == len(self.episode.reward)

    def advance(self, source: Iterator[_Rows]) -> None:
        if not self.at_end:
            self._at += 1
        elif (episode := next(source, None)) is not None:
            self.episode, self._at = episode, 0
        else:
            self.goes_on = False


def _read(number: int, episode: Episode, spec: EnvSpec) -> _Rows:
    """Return an episode as it is stored; raise `ConfigError` if it does not fit."""
    where = f"episode {number}"
    steps = len(episode.rewards)
    if not steps:
        raise ConfigError(f"{where} has no steps; leave it out")
    action = _shaped(f"{where}: actions", episode.actions, spec.action, steps)
    if (choices := _choices(spec.action)) is not None and (
        (action < choices[0]) | (action > choices[1])
    ).any():
        raise ConfigError(
            f"{where}: actions must lie between {choices[0]} and {choices[1]}, got "
            f"{action.min()} to {action.max()}"
        )
    reward = _shaped(f"{where}: rewards", episode.rewards, _REWARD, steps)
    obs = _observations(where, episode.observations, spec.observation, steps + 1)
    return _Rows(obs, action, reward, episode.terminated)


def _observations(
    where: str, observations: Observations, spec: BoxSpec | PackedSpec, rows: int
) -> Array:
    if not isinstance(spec, PackedSpec):
        return _shaped(f"{where}: observations", observations, spec, rows)
    fields = dict(_fields(observations, ""))
    expected = dict(spec.fields)
    if set(fields) != set(expected):
        raise ConfigError(
            f"{where}: observations must have the fields {sorted(expected)}, got {sorted(fields)}"
        )
    return spec.pack(
        {
            name: _shaped(f"{where}: observations {name!r}", fields[name], box, rows)
            for name, box in expected.items()
        }
    )


def _fields(observations: Observations, name: str) -> Iterator[tuple[str, object]]:
    """Yield arrays with their names, joined as in a spec."""
    if isinstance(observations, Mapping):
        members: Iterable[tuple[object, Observations]] = observations.items()
    elif isinstance(observations, tuple):
        members = enumerate(observations)
    else:
        yield name, observations
        return
    for key, part in members:
        yield from _fields(part, f"{name}/{key}" if name else str(key))


def _shaped(what: str, values: object, spec: BoxSpec | DiscreteSpec, rows: int) -> Array:
    """Return values as rows of a spec's shape and dtype; raise `ConfigError` if they differ."""
    array = np.asarray(values)
    kinds = "iub" if np.dtype(spec.dtype).kind in "iu" else "iufb"
    if array.shape != (rows, *spec.shape) or array.dtype.kind not in kinds:
        raise ConfigError(
            f"{what} must be {spec.dtype} of shape {(rows, *spec.shape)}, got {array.dtype} of "
            f"{array.shape}"
        )
    with np.errstate(over="ignore"):  # overflow to infinity is reported below
        stored = array.astype(spec.dtype, copy=False)
    if stored.dtype.kind == "f" and not np.isfinite(stored).all():
        raise ConfigError(f"{what} contain NaN or numbers outside the range of {spec.dtype}")
    if stored.dtype.kind != "f" and not np.array_equal(stored, array):
        raise ConfigError(
            f"{what} do not fit into {spec.dtype}: they range from {array.min()} to {array.max()}"
        )
    return stored


def _choices(action: BoxSpec | DiscreteSpec) -> tuple[Array, Array] | None:
    """Return the lowest and the highest choice of discrete actions."""
    if isinstance(action, DiscreteSpec):
        return np.array(0), np.array(action.n - 1)
    return (action.low, action.high) if action.categorical else None
