"""The contract of environments for actors: several of one kind, stepped together.

`envs/` adapts Gymnasium's environments and vector environments to it. No other part of asyncrl
knows Gymnasium, and this contract has no autoreset modes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from asyncrl.core.errors import ActorFailed, ConfigError, describe_error
from asyncrl.core.types import Array, BoolArray

_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class BoxSpec:
    """An array of fixed shape, with bounds if there are any (else infinite)."""

    shape: tuple[int, ...]
    dtype: str
    low: Array
    high: Array

    categorical: bool = False
    """Whether its numbers stand for choices from `low` to `high` instead of quantities."""

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

    All code between environment and network sees one array of `shape` and `dtype`.
    """

    fields: tuple[tuple[str, BoxSpec], ...]
    """Names of nested fields are joined with "/"; members of a tuple are named 0, 1, ..."""

    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Offset of each field in a row: a multiple of its item size, or of 8 bytes."""

    row_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a row, a multiple of 8."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"the fields of an observation must have different names, got {names or 'none'}"
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

    @property
    def nbytes(self) -> int:
        """Return the bytes of a row."""
        return self.row_bytes

    def pack(self, columns: Mapping[str, Array]) -> Array:
        """Pack arrays (..., *shape), one per field, into rows (..., row_bytes)."""
        name, box = self.fields[0]
        lead = columns[name].shape[: columns[name].ndim - len(box.shape)]
        packed = np.zeros((*lead, self.row_bytes), np.uint8)
        for name, view in self.unpack(packed).items():
            if columns[name].shape != view.shape:
                raise ValueError(f"{name}: shape {columns[name].shape}, expected {view.shape}")
            np.copyto(view, columns[name], casting="equiv")
        return packed

    def unpack(self, packed: Array) -> dict[str, Array]:
        """Return the fields of rows (..., row_bytes); views, if a row's bytes are contiguous."""
        if packed.strides[-1] != 1:
            packed = np.ascontiguousarray(packed)
        lead = packed.shape[:-1]
        return {
            name: packed[..., start : start + box.nbytes].view(box.dtype).reshape(*lead, *box.shape)
            for (name, box), start in zip(self.fields, self.offsets, strict=True)
        }


@dataclass(frozen=True, slots=True)
class DiscreteSpec:
    """One of `n` choices. Agents count from 0; environments and trained policies add `start`."""

    n: int

    start: int = 0
    """The environment's own first choice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""
        return ()

    @property
    def dtype(self) -> str:
        """Return the dtype of one action."""
        return "int64"


ACTION_MASK = "action_mask"
"""Field of an observation that says which actions are allowed: one number per discrete action, 0
where it is forbidden. Agents choose none of these, and learn values of allowed actions only."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Observation and action of one environment."""

    observation: BoxSpec | PackedSpec
    action: BoxSpec | DiscreteSpec

    def __post_init__(self) -> None:
        box = self._mask()
        if box is None:
            return
        n = self.action.n if isinstance(self.action, DiscreteSpec) else None
        if n is None or box.shape != (n,):
            raise ConfigError(
                f"the field {ACTION_MASK!r} of observations has shape {box.shape}; it says which "
                "discrete actions are allowed, and must have one number for each: "
                f"{'there are none' if n is None else (n,)}. Correct it, or give it another name"
            )

    @property
    def masked(self) -> bool:
        """Whether observations say which actions are allowed."""
        return self._mask() is not None

    def _mask(self) -> BoxSpec | None:
        if isinstance(self.observation, BoxSpec):
            return None
        return dict(self.observation.fields).get(ACTION_MASK)


def _round_up(number: int, factor: int) -> int:
    return -(-number // factor) * factor


SUCCESS = "success"
"""Name of the number in `EnvStep.info` that says whether an episode was a success: 1, or 0."""


class EnvStep(NamedTuple):
    """The result of one batch of actions in B environments; the arrays belong to the caller."""

    obs: Array
    """(B, ...) to act on next. Where an episode ended, the first one of the next episode, or, if
    the environment resets only in the next step, still the last one of this episode."""

    reward: Array
    """(B,) float32."""

    terminated: BoolArray
    truncated: BoolArray
    """(B,); both may be true."""

    final_obs: Array
    """(B, ...) the true successors of the observations acted on. The same array as `obs` if no
    episode ended."""

    stepped: BoolArray | None = None
    """(B,) False where the environment only reset and ignored its action: no transition took place,
    reward and flags are 0, and `obs` is the first one of an episode. None means True everywhere."""

    score: Array | None = None
    """(B,) float32 rewards of the environment, if `reward` was changed for the learner, as by
    clipping. None if they are the same."""

    over: BoolArray | None = None
    """(B,) where an episode really ended, if the learner also sees other ends, such as the loss of
    one of several lives. None if it is wherever a flag is set."""

    info: Mapping[str, Array] | None = None
    """Numbers of the episodes that ended, by name, each (B,) float32, with NaN where no episode
    ended or its info has no such number. Contains `success` if the environment reports it. None if
    there are none. They are recorded, and not used for learning."""

    action: Array | None = None
    """(B, ...) what was done, if that was not the action of `step`: it is stored instead. None if
    they are the same."""

    @property
    def env_steps(self) -> int:
        """Return the number of environments that really stepped."""
        return len(self.reward) if self.stepped is None else int(np.count_nonzero(self.stepped))

    @property
    def begins(self) -> BoolArray:
        """Return where `obs` may be the first one of an episode.

        It certainly is where an environment only reset. Where an episode ended, it is either that
        or still the last one, which only a reset follows.
        """
        ended = self.terminated | self.truncated
        return ended if self.stepped is None else ended | ~self.stepped

    @property
    def scored(self) -> Array:
        """Return the rewards that returns are summed from."""
        return self.reward if self.score is None else self.score

    @property
    def counted(self) -> tuple[Array, BoolArray]:
        """Return the rewards that returns are summed from, and where a return is complete."""
        return (
            self.scored,
            (self.terminated | self.truncated) if self.over is None else self.over,
        )

    @property
    def is_plain(self) -> bool:
        """Whether all environments stepped, and only the flags can say that an episode ended."""
        return self.stepped is None and self.over is None and self.info is None


class BatchEnv(Protocol):
    """B environments of one kind, stepped together.

    The results of a custom one are checked, see `env_checks.py`; an error raises
    `EnvironmentFault`, and never reaches replay. One that checks itself declares it by a class
    attribute `checks_itself = True`.

    If observations are stacks of frames, newest last, an attribute `n_frames` may declare their
    number. Each stack must be rebuildable from the newest frames of single observations, with an
    episode's first frame in place of earlier ones. Segments may then store only the newest frames.

    A method `rest(resting)` may stop stepping some of them, by a mask (B,), until the next reset.
    Their rows then stay as they are. Evaluations call it where an episode has ended.

    If they have goals, an attribute `goal_reward` may describe how rewards are computed from them,
    see `goals.py`. It is read before the first reset, and may step the environments.
    """

    @property
    def spec(self) -> EnvSpec:
        """Observation and action spaces of one of them."""
        ...

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        ...

    def reset(self, seed: int) -> Array:
        """Reset all environments reproducibly, and return (B, ...) observations."""
        ...

    def step(self, action: Array) -> EnvStep:
        """Step all of them; NaN, infinity or a wrong shape in the result is a fault."""
        ...

    def close(self) -> None:
        """Release their resources; may be called again."""
        ...


MakeBatchEnv = Callable[[], BatchEnv]
"""Builds a batch of environments in the process that steps it."""

_MAKE_ENV = (
    'pass EnvConfig(id="CartPole-v1", n_envs=8).build, or for a custom environment '
    "make_batch(MyEnv, n_envs=8), both from asyncrl"
)


@dataclass(frozen=True, slots=True)
class EnvSource:
    """Builds a batch of environments in the process that steps it; this one, by any function.

    Those of `EnvConfig` and `make_batch` know more about what they build. See `source_of`.
    """

    of: Any
    """What it was made of, which says in words what it builds: here the function."""

    def __call__(self) -> BatchEnv:
        """Build them."""
        return self.of()  # type: ignore[no-any-return]

    def for_episodes(self, episodes: int) -> EnvSource:
        """Return what builds as many of the same environments as play these episodes, if it can."""
        return self

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> EnvSource:
        """Return what builds the same environments, with these keyword arguments, too."""
        return replace(self, of=partial(self.of, **kwargs))

    def describe(self, *, goals: bool = False) -> EnvDescription:
        """Build the environments once in this process, and close them.

        `goals` asks how rewards are computed from goals, for which one of them may be stepped.
        """
        env = make_batch_env(self)
        try:
            n_frames = getattr(env, "n_frames", 1)
            goal_reward = getattr(env, "goal_reward", None) if goals else None
            return EnvDescription(env.spec, env.n_envs, n_frames, goal_reward)
        finally:
            try:
                env.close()
            except Exception as error:
                raise ActorFailed(f"its `close` failed: {describe_error(error)}") from error


def source_of(make_env: MakeBatchEnv, name: str = "make_env") -> EnvSource:
    """Return what builds environments, by this function; raise if it is none."""
    if not callable(make_env):
        raise ConfigError(
            f"{name} must be a function, got {make_env!r:.80}, because training and evaluations "
            f"build separate environments; {_MAKE_ENV}"
        )
    return make_env if isinstance(make_env, EnvSource) else EnvSource(make_env)


def make_batch_env(make_env: MakeBatchEnv, name: str = "make_env") -> BatchEnv:
    """Build environments; raise if `make_env` returns anything else."""
    env = source_of(make_env, name)()
    if not hasattr(env, "n_envs"):
        if hasattr(env, "close"):
            env.close()
        raise ConfigError(
            f"{name} must return a batch of environments, got {env!r:.80}; {_MAKE_ENV}"
        )
    return env


class EnvDescription(NamedTuple):
    """What a run must know about its environments before it begins."""

    spec: EnvSpec
    """Observation and action spaces of one of them."""

    n_envs: int
    """Number of environments per actor."""

    n_frames: int = 1
    """Frames per observation, if observations are stacks."""

    goal_reward: Mapping[str, Any] | None = None
    """Where `compute_reward` of an environment with goals is, see `goals.py`; else None."""


# --- plain forms, which JSON can represent --------------------------------------------------------

Plain = dict[str, Any]


def plain_description(seen: EnvDescription) -> Plain:
    """Return the facts about environments as plain values, which JSON can represent."""
    return {**seen._asdict(), "spec": plain_spec(seen.spec)}


def description_of(plain: Plain) -> EnvDescription:
    """Return what `plain_description` was made of."""
    return EnvDescription(**{**plain, "spec": spec_of(plain["spec"])})


def plain_spec(spec: EnvSpec) -> Plain:
    """Return spaces as plain values, which JSON can represent."""
    return {"observation": _plain_space(spec.observation), "action": _plain_space(spec.action)}


def spec_of(plain: Mapping[str, Any]) -> EnvSpec:
    """Return what `plain_spec` was made of."""
    return EnvSpec(_space_of(plain["observation"]), _space_of(plain["action"]))


def _plain_space(space: BoxSpec | PackedSpec | DiscreteSpec) -> Plain:
    match space:
        case DiscreteSpec(n, start):
            return {"n": int(n), "start": int(start)}
        case PackedSpec(fields):
            return {"fields": [[name, _plain_space(box)] for name, box in fields]}
        case BoxSpec():
            return {
                "shape": list(map(int, space.shape)),
                "dtype": str(space.dtype),
                "low": _plain_array(space.low),
                "high": _plain_array(space.high),
                "categorical": bool(space.categorical),
            }


def _space_of(plain: Plain) -> Any:  # noqa: ANN401  # of any kind
    match plain:
        case {"n": n, "start": start}:
            return DiscreteSpec(n, start)
        case {"fields": fields}:
            return PackedSpec(tuple((name, _space_of(box)) for name, box in fields))
        case _:
            return BoxSpec(
                tuple(plain["shape"]),
                plain["dtype"],
                _array_of(plain["low"]),
                _array_of(plain["high"]),
                categorical=plain["categorical"],
            )


def _plain_array(array: Array) -> Plain:
    array = np.asarray(array)
    if array.size > 1 and (array == array.flat[0]).all():
        one = base64.b64encode(array.flat[0].tobytes()).decode()
        return {"dtype": array.dtype.str, "shape": list(array.shape), "all": one}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _array_of(plain: Mapping[str, Any]) -> Array:
    if (one := plain.get("all")) is not None:
        return np.full(plain["shape"], np.frombuffer(base64.b64decode(one), plain["dtype"])[0])
    data = base64.b64decode(plain["data"])
    return np.frombuffer(data, np.dtype(plain["dtype"])).reshape(plain["shape"]).copy()
