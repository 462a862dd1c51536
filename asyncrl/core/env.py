"""What actors need of an environment: several of it, stepped together.

`envs/` turns Gymnasium's environments and vector environments into this contract; nothing else
in asyncrl knows Gymnasium, and nothing at all knows about autoreset modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray

_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class BoxSpec:
    """An array of fixed shape, with bounds where there are any (else infinite)."""

    shape: tuple[int, ...]
    dtype: str
    low: Array
    high: Array

    categorical: bool = False
    """Whether its numbers name choices from `low` to `high`, and are no quantities."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of one such array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BoxSpec)
            and (self.shape, self.dtype) == (other.shape, other.dtype)
            and self.categorical == other.categorical
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


@dataclass(frozen=True, slots=True)
class PackedSpec:
    """Several named arrays in one row of bytes.

    Whatever lies between an environment and a network sees one array of `shape` and `dtype`.
    """

    fields: tuple[tuple[str, BoxSpec], ...]
    """Names of nested fields are joined with "/"; members of a tuple are called 0, 1, ..."""

    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Where each field starts in a row: at a multiple of its item's size, or of 8 bytes."""

    row_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a row, a multiple of 8."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"the fields of an observation must have names of their own, got {names or 'none'}"
            )
        offsets, end = [], 0
        for _, box in self.fields:
            offsets.append(_round_up(end, min(np.dtype(box.dtype).itemsize, _ALIGNMENT_BYTES)))
            end = offsets[-1] + box.nbytes
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "row_bytes", _round_up(end, _ALIGNMENT_BYTES))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return (self.row_bytes,)

    @property
    def dtype(self) -> str:
        """Return the dtype of a row."""
        return "uint8"

    def pack(self, columns: Mapping[str, Array]) -> Array:
        """Return rows (..., row_bytes) of arrays (..., *shape), one for each field."""
        name, box = self.fields[0]
        lead = columns[name].shape[: columns[name].ndim - len(box.shape)]
        packed = np.zeros((*lead, self.row_bytes), np.uint8)
        for name, view in self.unpack(packed).items():
            if columns[name].shape != view.shape:
                raise ValueError(f"{name}: shape {columns[name].shape}, expected {view.shape}")
            np.copyto(view, columns[name], casting="equiv")
        return packed

    def unpack(self, packed: Array) -> dict[str, Array]:
        """Return the fields of rows (..., row_bytes): views, if the bytes of a row lie together."""
        if packed.strides[-1] != 1:
            packed = np.ascontiguousarray(packed)
        lead = packed.shape[:-1]
        return {
            name: packed[..., start : start + box.nbytes].view(box.dtype).reshape(*lead, *box.shape)
            for (name, box), start in zip(self.fields, self.offsets, strict=True)
        }


@dataclass(frozen=True, slots=True)
class DiscreteSpec:
    """One of `n` choices. Policies count from 0; `envs/` adds an environment's own `start`."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""
        return ()

    @property
    def dtype(self) -> str:
        """Return the dtype of one action."""
        return "int64"


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Observation and action of one environment."""

    observation: BoxSpec | PackedSpec
    action: BoxSpec | DiscreteSpec


def _round_up(number: int, factor: int) -> int:
    return -(-number // factor) * factor


SUCCESS = "success"
"""The number in `EnvStep.info` that says whether an episode was a success: 1, or 0."""


class EnvStep(NamedTuple):
    """What B environments answered to one batch of actions; arrays are the caller's to keep."""

    obs: Array
    """(B, ...) to act on next; where an episode ended, the first one of the next episode, or, if
    the environment only resets in the next step, still the last one of this episode."""

    reward: Array
    """(B,) float32."""

    terminated: BoolArray
    truncated: BoolArray
    """(B,); both may be true."""

    final_obs: Array
    """(B, ...) the true successor of the observation acted on. The same array as `obs` when no
    episode ended."""

    stepped: BoolArray | None = None
    """(B,) False where the environment only reset, ignoring its action: no transition took place,
    reward and flags are 0, and `obs` is the first one of an episode. None if nowhere."""

    score: Array | None = None
    """(B,) float32 rewards as the environment counts them, where `reward` was changed for the
    learner, as by clipping. None if they are the same."""

    over: BoolArray | None = None
    """(B,) where an episode ended as people count them: not where only the learner is told of an
    end, as when a life of several is lost. None if that is wherever a flag is set."""

    info: Mapping[str, Array] | None = None
    """Numbers of the episodes that ended, by name, each (B,) float32 with NaN where no episode
    ended or its info has no such number. `success` is among them where the environment reports it.
    None if there are none. They are recorded; learning does not use them."""

    @property
    def begins(self) -> BoolArray:
        """Return where `obs` may be the first one of an episode.

        Certainly where an environment only reset. Where an episode ended, it is one or still the
        last one, of which nothing but another reset comes.
        """
        ended = self.terminated | self.truncated
        return ended if self.stepped is None else ended | ~self.stepped

    @property
    def counted(self) -> tuple[Array, BoolArray]:
        """Return the rewards that make up returns, and where a return is complete."""
        return (
            self.reward if self.score is None else self.score,
            (self.terminated | self.truncated) if self.over is None else self.over,
        )


class BatchEnv(Protocol):
    """B environments of one kind, stepped together.

    What one of your own gives is checked, see `env_checks.py`; what is wrong raises
    `EnvironmentFault`, and never reaches replay. One that checks itself may say so, by a class
    attribute `checks_itself = True`.

    One whose observations are stacks of frames, newest last, may say of how many by an attribute
    `n_frames`, if each can be built again from the newest frames of single observations, where an
    episode's first one stands for those before it. Rows of segments may then hold the newest alone.
    """

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one of them."""
        ...

    @property
    def n_envs(self) -> int:
        """How many."""
        ...

    def reset(self, seed: int) -> Array:
        """Start all episodes anew, reproducibly, and return (B, ...) observations."""
        ...

    def step(self, action: Array) -> EnvStep:
        """Act in all of them; NaN, infinity or a wrong shape in what is returned is a fault."""
        ...

    def close(self) -> None:
        """Release what they hold; may be called again."""
        ...


MakeBatchEnv = Callable[[], BatchEnv]
"""Builds a batch of environments in the process that will step it."""

_MAKE_ENV = (
    'give EnvConfig(id="CartPole-v1", n_envs=8).build, or for environments of your own '
    "make_batch(MyEnv, n_envs=8), both of asyncrl.envs.gym"
)


def require_make_env(make_env: MakeBatchEnv, name: str = "make_env") -> None:
    """Refuse what cannot make environments, an argument of this name, without making any."""
    if not callable(make_env):
        raise ConfigError(
            f"{name} must be a function, got {make_env!r:.80}, because training and evaluations "
            f"make environments of their own; {_MAKE_ENV}"
        )


def make_batch_env(make_env: MakeBatchEnv, name: str = "make_env") -> BatchEnv:
    """Make environments; refuse a function, an argument of this name, that makes anything else."""
    require_make_env(make_env, name)
    env = make_env()
    if not hasattr(env, "n_envs"):
        if hasattr(env, "close"):
            env.close()
        raise ConfigError(
            f"{name} must return a batch of environments, got {env!r:.80}; {_MAKE_ENV}"
        )
    return env


class Seen(NamedTuple):
    """What a run must know of its environments before it can begin."""

    spec: EnvSpec
    """Spaces of one of them."""

    n_envs: int
    """How many an actor steps."""

    n_frames: int = 1
    """Frames of an observation, where it is a stack of them."""


def look_at(make_env: MakeBatchEnv) -> Seen:
    """Make the environments once, in this process, and close them."""
    env = make_batch_env(make_env)
    try:
        return Seen(env.spec, env.n_envs, getattr(env, "n_frames", 1))
    finally:
        env.close()
