"""Steps one plain or vector environment by hand and records each answer unchanged.

Shares only the checks of Gymnasium's API with the batches used in training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from asyncrl.core.env import ACTION_MASK
from asyncrl.core.env_checks import shown
from asyncrl.core.types import BoolArray
from asyncrl.envs.checks import first_obs, flags_of, of_api, space_of

Row = Any  # an observation of one environment; Python has no common type for these


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of all environments of a probe to one action each."""

    rows: list[Row]
    """Observations as `step` returned them."""

    rewards: list[Any]
    terminated: list[Any]
    truncated: list[Any]
    stepped: BoolArray
    """False where, according to its metadata, the vector environment only reset."""

    infos: dict[str, Any]
    """Infos of a vector environment; they show where it did more than step."""


class Probe:
    """Steps with random actions, and resets the environments that do not reset themselves."""

    def __init__(self, env: Any, seed: int = 0) -> None:  # noqa: ANN401  # plain or vector
        self.env = env
        self.vector = isinstance(env, VectorEnv)
        self._name = type(env.unwrapped).__name__
        self.n_envs: int = env.num_envs if self.vector else 1
        prefix = "single_" if self.vector else ""
        self.observation_space: Space[Any] = space_of(env, f"{prefix}observation_space")
        self._action_space: Space[Any] = space_of(env, f"{prefix}action_space")
        spaces = self.observation_space.spaces if isinstance(self.observation_space, Dict) else {}
        self.masked = ACTION_MASK in spaces
        """Whether observations hold an action mask."""
        self._batched_space = batch_space(self.observation_space, self.n_envs)
        self._action_space.seed(seed)
        self.mode = _mode(env) if self.vector else AutoresetMode.DISABLED
        self.time_limit: int | None = getattr(env.spec, "max_episode_steps", None)
        self.rows: list[Row] = []
        """The last observations."""
        self.ended = np.zeros(self.n_envs, bool)
        """True where the last step ended an episode."""
        self._resetting = np.zeros(self.n_envs, bool)

    def reset(self, seed: int | None = None) -> list[Row]:
        """Reset all environments."""
        self._resetting = self.ended = np.zeros(self.n_envs, bool)
        self.rows = self._rows(first_obs(self.env, self._name, seed=seed))
        return self.rows

    def sample(self) -> list[Any]:
        """Return one random action per environment."""
        rows = self.rows or [None] * self.n_envs
        return [self._sample(row) for row in rows]

    def step(self, actions: Sequence[Any]) -> Answer:
        """Step all environments, and reset none."""
        if self.vector:
            batch: Any = create_empty_array(self._action_space, self.n_envs)
            answer = self.env.step(concatenate(self._action_space, actions, batch))
        else:
            answer = self.env.step(actions[0])
        obs, *each, infos = of_api("step", answer, self._name)
        rewards, terminated, truncated = each if self.vector else ([value] for value in each)
        self.rows = self._rows(obs)
        stepped = ~self._resetting
        self.ended = stepped & (
            self._flags("terminated", terminated) | self._flags("truncated", truncated)
        )
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = self.ended
        return Answer(self.rows, [*rewards], [*terminated], [*truncated], stepped, infos)

    def reset_ended(self) -> None:
        """Reset the environments whose episode has ended, unless they reset themselves."""
        if self.mode is not AutoresetMode.DISABLED or not self.ended.any():
            return
        options = {"options": {"reset_mask": self.ended.copy()}} if self.vector else {}
        self.rows = self._rows(first_obs(self.env, self._name, **options))

    def _flags(self, what: str, flags: Any) -> BoolArray:  # noqa: ANN401  # from foreign code
        return flags_of(what, flags, self.n_envs, self._name)

    def _sample(self, row: Row | None) -> Any:  # noqa: ANN401  # of any space
        """Return a random action; one that the observation allows, if it has an action mask."""
        if isinstance(row, Mapping) and ACTION_MASK in row:
            return self._action_space.sample(np.asarray(row[ACTION_MASK], np.int8))
        return self._action_space.sample()

    def _rows(self, obs: Any) -> list[Row]:  # noqa: ANN401  # from foreign code
        return [*iterate(self._batched_space, obs)] if self.vector else [obs]


def _mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode | None:
    try:
        return AutoresetMode((env.metadata or {}).get("autoreset_mode"))
    except ValueError:
        return None


_EXACT_IN_FLOAT32 = 2**24

_ALL_CHECKED = 2000
"""Number of observations that are all checked; later, every tenth is."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Length and end of one episode."""

    length: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Misfit:
    """How an observation differs from its space."""

    kind: str
    """`shape`, `dtype`, `bounds` or `structure`."""

    seen: str


@dataclass(slots=True)
class Experience:
    """Facts about some thousand steps."""

    env_steps: int = 0
    episodes: list[Episode] = field(default_factory=list)
    time_limit: int | None = None
    misfits: dict[str, Misfit] = field(default_factory=dict)
    """The first one of each kind."""

    not_finite: str = ""
    """The first observation with NaN or infinity, in words."""

    bad_reward: str = ""
    bad_flag: str = ""
    reuses_arrays: bool = False
    unused_mask: bool = False
    """Whether infos hold an action mask, and observations do not."""

    longest: int = 0
    """Steps of the longest episode, ended or not."""


def play(probe: Probe, seconds: float, *, seed: int = 0, max_steps: int = 100_000) -> Experience:
    """Step with random actions for `seconds` and record the facts."""
    seen = Experience(time_limit=probe.time_limit)
    lengths = np.zeros(probe.n_envs, np.int64)
    _look(seen, probe, probe.reset(seed))
    until = time.perf_counter() + seconds
    while seen.env_steps < max_steps and time.perf_counter() < until:
        before = probe.rows
        copies = [kept(row) for row in before]
        answer = probe.step(probe.sample())
        seen.reuses_arrays |= not all(map(same, before, copies))
        seen.unused_mask |= ACTION_MASK in (answer.infos or {}) and not probe.masked
        _look(seen, probe, answer.rows)
        _count(seen, answer, lengths)
        _take_ends(seen, answer, lengths, probe.ended)
        if probe.ended.any():
            probe.reset_ended()
            _look(seen, probe, probe.rows)
    return seen


def same(a: Any, b: Any) -> bool:  # noqa: ANN401  # observations of any space
    """Whether two observations are equal to the last bit; NaN equals NaN."""
    pairs = zip(_leaves(a), _leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def kept(row: Any) -> Any:  # noqa: ANN401  # from foreign code
    """Return a copy of an observation for `same`: some environments overwrite theirs."""
    return tuple(leaf.copy() for leaf in _leaves(row))


def misfit(space: Space[Any], row: Any) -> Misfit | None:  # noqa: ANN401  # from foreign code
    """Return how an observation differs from its space; None if it does not."""
    if space.contains(row):
        return None
    if isinstance(space, Dict) and isinstance(row, dict) and row.keys() == space.spaces.keys():
        found = ((name, misfit(part, row[name])) for name, part in space.spaces.items())
        return next((Misfit(m.kind, f"field {name!r}: {m.seen}") for name, m in found if m), None)
    if isinstance(space, Box):
        return _box_misfit(space, row)
    return Misfit("structure", f"{shown(row)} is not in {space}")


def _box_misfit(space: Box, row: Any) -> Misfit | None:  # noqa: ANN401  # from foreign code
    array = np.asarray(row)
    if array.shape != space.shape:
        return Misfit("shape", f"{array.shape} where the space says {space.shape}")
    if array.dtype != space.dtype:
        return Misfit("dtype", f"{array.dtype} where the space says {space.dtype}")
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        first = tuple(int(i) for i in np.argwhere(outside)[0])
        low, high = space.low[first], space.high[first]
        return Misfit("bounds", f"{array[first]:g} at {first} where the space says {low} to {high}")
    return None


def _look(seen: Experience, probe: Probe, rows: list[Any]) -> None:
    if seen.env_steps > _ALL_CHECKED and seen.env_steps % 10:
        return
    for row in rows:
        if not seen.not_finite and not all(_finite(leaf) for leaf in _leaves(row)):
            seen.not_finite = f"{shown(row)} after {seen.env_steps} steps"
        for leaf in (leaf for leaf in _leaves(row) if leaf.dtype.kind in "iuf"):
            rounded = leaf[(np.abs(leaf) > _EXACT_IN_FLOAT32) & (leaf.astype(np.float32) != leaf)]
            if rounded.size:
                text = f"{rounded[0]!r} becomes {float(np.float32(rounded[0]))!r} in float32"
                seen.misfits.setdefault("precision", Misfit("precision", text))
        found = None if seen.not_finite else misfit(probe.observation_space, row)
        if found is not None:
            seen.misfits.setdefault(found.kind, found)


def _count(seen: Experience, answer: Answer, lengths: np.ndarray[Any, Any]) -> None:
    stepped = answer.stepped
    seen.env_steps += int(stepped.sum())
    lengths += stepped
    seen.longest = max(seen.longest, int(lengths.max()))
    for i in np.flatnonzero(stepped):
        _take_reward(seen, answer.rewards[i])
    for flags in (answer.terminated, answer.truncated):
        wrong = [flag for flag in flags if not isinstance(flag, bool | np.bool_)]
        if wrong and not seen.bad_flag:
            seen.bad_flag = f"{shown(wrong[0])}, a {type(wrong[0]).__name__}"


def _take_ends(
    seen: Experience, answer: Answer, lengths: np.ndarray[Any, Any], ended: BoolArray
) -> None:
    for i in np.flatnonzero(ended):
        flags = bool(answer.terminated[i]), bool(answer.truncated[i])
        seen.episodes.append(Episode(int(lengths[i]), *flags))
        lengths[i] = 0


def _take_reward(seen: Experience, reward: Any) -> None:  # noqa: ANN401  # from foreign code
    array = np.asarray(reward)
    fine = array.shape == () and array.dtype.kind in "biuf" and math.isfinite(float(array))
    if not fine and not seen.bad_reward:
        seen.bad_reward = f"{shown(reward)}, a {type(reward).__name__}"


def _leaves(row: Any) -> Iterator[np.ndarray[Any, Any]]:  # noqa: ANN401  # from foreign code
    if isinstance(row, dict):
        for part in row.values():
            yield from _leaves(part)
    elif isinstance(row, tuple):
        for part in row:
            yield from _leaves(part)
    else:
        yield np.asarray(row)


def _finite(leaf: np.ndarray[Any, Any]) -> bool:
    return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())
