"""What a probe has seen in play: counted and measured as it goes, judged elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from asyncrl.core.env_checks import shown
from asyncrl.core.types import BoolArray
from asyncrl.envs._probe import Answer, Probe

_ALL_CHECKED = 2000
"""Observations that are all looked at; of later ones each tenth is."""


@dataclass(frozen=True, slots=True)
class Episode:
    """How one ended."""

    length: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Misfit:
    """How an observation differs from what its space promises."""

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
    longest: int = 0
    """Steps of the longest episode, ended or not."""


def play(probe: Probe, seconds: float, *, seed: int = 0, max_steps: int = 100_000) -> Experience:
    """Act at random for so long, and note what comes."""
    seen = Experience(time_limit=probe.time_limit)
    lengths = np.zeros(probe.n_envs, np.int64)
    _look(seen, probe, probe.reset(seed))
    until = time.perf_counter() + seconds
    while seen.env_steps < max_steps and time.perf_counter() < until:
        before = probe.rows
        copies = [kept(row) for row in before]
        answer = probe.step(probe.sample())
        seen.reuses_arrays |= not all(map(same, before, copies))
        _look(seen, probe, answer.rows)
        _count(seen, answer, lengths)
        _take_ends(seen, answer, lengths, probe.ended)
        if probe.ended.any():
            probe.reset_ended()
            _look(seen, probe, probe.rows)
    return seen


def same(a: Any, b: Any) -> bool:  # noqa: ANN401  # observations of any space
    """Tell whether two observations are equal to the last bit; NaN is equal to NaN."""
    pairs = zip(_leaves(a), _leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def kept(row: Any) -> Any:  # noqa: ANN401  # from foreign code
    """Return a copy of an observation for `same`: some environments write into theirs again."""
    return tuple(leaf.copy() for leaf in _leaves(row))


def misfit(space: Space[Any], row: Any) -> Misfit | None:  # noqa: ANN401  # from foreign code
    """Say how an observation differs from what its space promises; None if it does not."""
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
