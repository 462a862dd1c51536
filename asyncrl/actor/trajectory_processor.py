"""Holds whole trajectories before they become experience: length limits, clips, derived columns.

A trajectory consists of the steps in one environment from the beginning of an episode, or from the
previous cut, to the end of the episode, to `max_length`, or to where the actor stops. Its rows are
held back until then. `ReturnToGo`, or a custom function, can read all of them and add columns,
which batches contain under their names.

    rows held      0  1  2  3  4  5  6  7  8  9          clip_length=4, clip_stride=3
    stored         0  1  2  3  E                         E: an `END` row, with the observation that
                            3  4  5  6  E                   follows; no return reaches across it
                                     6  7  8  9  E
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asyncrl.actor.step_processor import OneStep, Rows, Step, StepProcessor
from asyncrl.core.declared import Count, CountOrOff, Share, check_declared
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record
from asyncrl.core.segment import END, ColumnSpec
from asyncrl.core.types import Array, BoolArray, Columns, IntArray

_FIRST_ROOM = 64
"""Initial capacity of a trajectory in rows; it doubles when it is exceeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryConfig:
    """How trajectories are selected and cut. All lengths are in steps."""

    min_length: Count = 1
    """Minimum steps of a trajectory or clip. Shorter ones are discarded and counted."""

    max_length: CountOrOff = 1000
    """Maximum steps of a trajectory. A longer one is cut here and continues as another one. 0 sets
    no limit: an episode that does not end is then held without end."""

    clip_length: CountOrOff = 0
    """Steps per stored clip; the last clip of a trajectory may be shorter. 0 stores whole
    trajectories."""

    clip_stride: CountOrOff = 0
    """Steps between the starts of two clips. Less than `clip_length` makes clips overlap; more
    skips steps. 0 means `clip_length`."""

    def __post_init__(self) -> None:
        check_declared(self, "trajectory")
        if 0 < self.max_length < self.min_length:
            raise ConfigError(
                f"trajectory.max_length={self.max_length} is less than "
                f"min_length={self.min_length}, so every trajectory would be discarded; increase it"
            )
        if 0 < self.clip_length < self.min_length:
            raise ConfigError(
                f"trajectory.clip_length={self.clip_length} is less than "
                f"min_length={self.min_length}, so every clip would be discarded; increase it"
            )
        if self.clip_stride and not self.clip_length:
            raise ConfigError(
                f"trajectory.clip_stride={self.clip_stride} has no effect without a clip_length"
            )

    def clips(self, length: int) -> list[tuple[int, int]]:
        """Return begin and end of the clips of a trajectory, including those that are too short.

        Clips begin every `clip_stride` steps until one reaches the trajectory's end.
        """
        size = self.clip_length or length
        clips = []
        for begin in range(0, length, self.clip_stride or size):
            clips.append((begin, min(begin + size, length)))
            if begin + size >= length:
                break
        return clips


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The argument of a function that reads whole trajectories."""

    columns: Columns
    """One row per step: `obs`, `action`, `reward`, `flags` and the policy's extra columns."""

    last_obs: Array
    """The observation after the last step."""


class PostProcess(Protocol):
    """Derives columns from a whole trajectory; must be importable, or picklable by cloudpickle."""

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Return the derived columns: names, and dtype and shape of one row."""
        ...

    def __call__(self, trajectory: Trajectory) -> Columns:
        """Return these columns, one row per row of the trajectory; keep no reference to it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToGo:
    """Return to go: the discounted sum of the rewards from each step to the trajectory's end.

    Nothing is bootstrapped: if the trajectory was cut, the rewards after the cut are missing.
    """

    gamma: Share = 0.99
    """Discount factor per step."""

    name: str = "return_to_go"
    """Name of the column."""

    def __post_init__(self) -> None:
        check_declared(self, "ReturnToGo")

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One number per step."""
        return (ColumnSpec(self.name, "float32"),)

    def __call__(self, trajectory: Trajectory) -> Columns:
        """Compute it from the last step backwards."""
        returns = trajectory.columns["reward"].astype(np.float64)
        for t in range(len(returns) - 2, -1, -1):
            # G_t = r_t + gamma * G_{t+1}
            returns[t] += self.gamma * returns[t + 1]
        return {self.name: returns.astype(np.float32)}


class Trajectories:
    """Holds rows back until their trajectory is complete, and stores it as `TrajectoryConfig` says.

    Stores whole observations: `segment.frame_stack` must be 1. Where a synchronous run cuts
    segments before each round, as for on-policy agents, it cuts trajectories, too.
    """

    def __init__(
        self,
        config: TrajectoryConfig | None = None,
        *,
        post_process: PostProcess | None = None,
        one_step: StepProcessor | None = None,
    ) -> None:
        """Serve one batch of environments.

        `one_step` makes the rows that are held. None uses a `OneStep`.
        """
        self._config = config or TrajectoryConfig()
        self._post_process = post_process
        self._one_step = one_step or OneStep()
        self._held = _Held(self._config.max_length or sys.maxsize)
        self._stored = self._discarded = self._discarded_transitions = 0

    def columns(self, spec: EnvSpec, extras: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Return the columns of the held rows, and those derived from trajectories."""
        made = self._post_process.columns if self._post_process else ()
        known = self._one_step.columns(spec, extras)
        frames = next(c.shape for c in known if c.name == "obs")
        if frames != spec.observation.shape:
            raise ConfigError(
                "Trajectories stores whole observations, since a clip may begin where older "
                f"frames are in another one; its one_step makes rows of {frames} of observations "
                f"of {spec.observation.shape}, so pass one without frame_stack"
            )
        return (*known, *(column for column in made if column not in known))

    def process(self, step: Step) -> Iterator[Rows]:
        """Hold the step's rows; yield the rows of the trajectories that end with it."""
        for rows in self._one_step.process(step):
            yield from self._take(rows)

    def finish(self, obs: Array) -> Iterator[Rows]:
        """End all trajectories at the current observations."""
        for rows in self._one_step.finish(obs):
            yield from self._take(rows)

    def record(self) -> Record:
        """Count what was stored and discarded: trajectories, or clips of them."""
        return {
            **self._one_step.record(),
            "trajectories_stored": self._stored,
            "trajectories_discarded": self._discarded,
            "transitions_discarded": self._discarded_transitions,
        }

    def _take(self, rows: Rows) -> Iterator[Rows]:
        ids, columns, only, _ = rows
        if only is not None:
            ids, columns = ids[only], {name: column[only] for name, column in columns.items()}
        # A row's observation also follows the row before it: it closes a trajectory that has ended.
        over = (columns["flags"] >= END) | self._held.full(ids)
        for k in np.flatnonzero(over):
            yield from self._release(int(ids[k]), columns["obs"][k])
        if (columns["flags"] < END).all():
            self._held.append(ids, columns)

    def _release(self, env_id: int, last_obs: Array) -> Iterator[Rows]:
        """Yield the stored rows of an environment's trajectory; an `END` row closes each clip."""
        held = self._held.take(env_id)
        length = len(held["flags"]) if held else 0
        clips = self._chosen(length) if length else []
        if clips and self._post_process:
            made = self._post_process(Trajectory(held, last_obs))
            held |= _checked(made, self._post_process.columns, length)
        ids = np.array([env_id])
        for begin, end in clips:
            for t in range(begin, end):
                yield Rows(ids, {name: column[t : t + 1] for name, column in held.items()})
            after = held["obs"][end] if end < length else last_obs
            yield Rows(ids, {"obs": after[None], "flags": np.full(1, END, np.uint8)})

    def _chosen(self, length: int) -> list[tuple[int, int]]:
        """Return the clips of a trajectory that are stored; count them and the discarded ones."""
        clips = self._config.clips(length)
        chosen = [clip for clip in clips if clip[1] - clip[0] >= self._config.min_length]
        stored = np.zeros(length, np.bool_)
        for begin, end in chosen:
            stored[begin:end] = True
        self._stored += len(chosen)
        self._discarded += len(clips) - len(chosen)
        self._discarded_transitions += int(np.count_nonzero(~stored))
        return chosen


class _Held:
    """The rows of each environment's trajectory so far."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._columns: dict[str, Array] = {}
        self._filled: IntArray = np.zeros(0, np.int64)

    def full(self, ids: IntArray) -> BoolArray:
        """Return which of these environments' trajectories have reached `max_length`."""
        if not len(self._filled):
            return np.zeros(len(ids), np.bool_)
        full: BoolArray = self._filled[ids] == self._max_length
        return full

    def append(self, ids: IntArray, columns: Columns) -> None:
        """Add a row to each of these environments' trajectories."""
        missing = int(ids.max(initial=-1)) + 1 - len(self._filled)
        self._filled = np.pad(self._filled, (0, max(0, missing)))
        at = self._filled[ids]
        rows = int(at.max(initial=0)) + 1
        for name, column in columns.items():
            if name not in self._columns:
                self._columns[name] = np.zeros((0, 0, *column.shape[1:]), column.dtype)
            self._with_room(name, rows)[ids, at] = column
        self._filled[ids] += 1

    def take(self, env_id: int) -> dict[str, Array]:
        """Return a copy of an environment's rows, and start a new trajectory there."""
        if env_id >= len(self._filled):
            return {}
        length, self._filled[env_id] = int(self._filled[env_id]), 0
        return {name: column[env_id, :length].copy() for name, column in self._columns.items()}

    def _with_room(self, name: str, rows: int) -> Array:
        """Return a column, grown if it has too few environments or rows."""
        now = self._columns[name]
        n_envs, room = len(self._filled), now.shape[1]
        if now.shape[0] < n_envs or room < rows:
            while room < rows:
                room = max(_FIRST_ROOM, 2 * room)
            shape = (n_envs, min(room, self._max_length), *now.shape[2:])
            grown = self._columns[name] = np.zeros(shape, now.dtype)
            grown[: now.shape[0], : now.shape[1]] = now
        return self._columns[name]


def _checked(made: Columns, declared: tuple[ColumnSpec, ...], length: int) -> dict[str, Array]:
    """Return the derived columns with the declared dtypes; refuse undeclared ones."""
    if set(made) != {column.name for column in declared}:
        raise ConfigError(
            f"the function for trajectories declares the columns {[c.name for c in declared]}, but "
            f"returned {sorted(made)}; return the declared ones"
        )
    columns = {c.name: np.asarray(made[c.name], c.dtype) for c in declared}
    for column in declared:
        if columns[column.name].shape != (length, *column.shape):
            raise ConfigError(
                f"the function for trajectories returned {column.name!r} with shape "
                f"{columns[column.name].shape}, expected {(length, *column.shape)}: one row for "
                "each row of the trajectory"
            )
    return columns
