"""Gymnasium spaces as specs, and their values in the form that the other side needs.

Steps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from asyncrl.core.env import ACTION_MASK, BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array


def spec_from_spaces(observation_space: Space[Any], action_space: Space[Any]) -> EnvSpec:
    """Return the spec of one environment, given its two spaces.

    Float observations and actions wider than 32 bits are declared float32, and the batches in this
    folder convert them: MuJoCo's float64 would double what is sent and stored for nothing.
    `Discrete` and `MultiDiscrete` observations become int64 between their bounds, and so do
    `MultiDiscrete` actions. The fields of `Dict` and `Tuple` observations become one row of bytes.
    """
    return EnvSpec(_observation_spec(observation_space), _action_spec(action_space))


def _observation_spec(space: Space[Any]) -> BoxSpec | PackedSpec:
    if not isinstance(space, Dict | Tuple):
        return _array_spec(space, f"observation space {space}")
    where = f"of observation space {space}, the field"
    return PackedSpec(
        tuple((name, _array_spec(part, f"{where} {name!r}")) for name, part in _parts(space))
    )


def _array_spec(space: Space[Any], where: str) -> BoxSpec:
    if isinstance(space, Box) and not space.dtype.hasobject:
        return _box_spec(space)
    if isinstance(space, MultiBinary):
        ones = np.ones(space.shape, np.int8)
        return BoxSpec(space.shape, "int8", 0 * ones, ones)
    if isinstance(space, Discrete | MultiDiscrete):
        low = np.array(space.start, np.int64)
        n = space.n if isinstance(space, Discrete) else space.nvec
        return BoxSpec(low.shape, "int64", low, low + n - 1, categorical=True)
    raise ConfigError(
        f"{where} is not supported: observations are Box, Discrete, MultiDiscrete, MultiBinary, or "
        "Dict and Tuple of these. Change it in the environment's factory: "
        "gymnasium.wrappers.FilterObservation removes fields of a Dict, TransformObservation does "
        "anything else."
    )


def _action_spec(space: Space[Any]) -> BoxSpec | DiscreteSpec:
    if isinstance(space, Box) and not space.dtype.hasobject:
        return _box_spec(space)
    if isinstance(space, Discrete):
        return DiscreteSpec(int(space.n), int(space.start))
    if isinstance(space, MultiDiscrete | MultiBinary):
        return replace(_array_spec(space, f"action space {space}"), categorical=True)
    raise ConfigError(
        f"action space {space} is not supported: policies choose Box, Discrete, MultiDiscrete or "
        "MultiBinary actions. Map one of these to it in the environment's factory with an "
        "ActionWrapper or with gymnasium.wrappers.TransformAction."
    )


def _box_spec(space: Box) -> BoxSpec:
    if space.dtype.kind != "f" or space.dtype.itemsize <= 4:
        return BoxSpec(space.shape, space.dtype.name, space.low, space.high)
    with np.errstate(over="ignore"):  # beyond float32's range there is no bound
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # Rounded inwards, so that the environment accepts an action on a rounded bound.
    up, down = np.float32(math.inf), np.float32(-math.inf)
    low = np.where(np.isfinite(low) & (low < space.low), np.nextafter(low, up), low)
    high = np.where(np.isfinite(high) & (high > space.high), np.nextafter(high, down), high)
    return BoxSpec(space.shape, "float32", low, high)


def _parts(space: Space[Any], name: str = "") -> Iterator[tuple[str, Space[Any]]]:
    """Yield the arrays that an observation consists of, in the order of `Parts`, with names."""
    if isinstance(space, Dict | Tuple):
        for key, part in _members(space):
            yield from _parts(part, _join(name, key))
    else:
        yield name, space


def _members(space: Dict | Tuple[Any]) -> Iterator[tuple[Any, Space[Any]]]:
    yield from space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)


def _join(name: str, key: object) -> str:
    return f"{name}/{key}" if name else str(key)


class Parts:
    """Splits observations, many at once, into the arrays that they consist of."""

    def __init__(self, space: Space[Any]) -> None:
        self._space = space

    def __call__(self, observations: Sequence[Any]) -> list[Sequence[Any]]:
        """Return, for each part, that part of every observation.

        Raises `TypeError` or `LookupError` if one is not built as the space declares.
        """
        return [*self._split(self._space, observations)]

    def misfit(self, observation: object) -> str | None:
        """Describe where an observation is not built as the space declares; None if it is."""
        return _misfit(self._space, observation, "")

    def _split(self, space: Space[Any], rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        if not isinstance(space, Dict | Tuple):
            yield rows
            return
        if {len(row) for row in rows} != {len(space.spaces)}:
            raise LookupError(f"not all have {len(space.spaces)} members")
        for key, part in _members(space):
            yield from self._split(part, [row[key] for row in rows])


def _misfit(space: Space[Any], found: Any, name: str) -> str | None:  # noqa: ANN401  # foreign
    if not isinstance(space, Dict | Tuple):
        return None
    what = f"its field {name!r}" if name else "it"
    keys = [key for key, _ in _members(space)]
    if isinstance(space, Dict):
        if not isinstance(found, Mapping) or {*found} != {*keys}:
            return f"{what} must be a dict with the keys {keys}, got {_built(found)}"
    elif not isinstance(found, Sequence) or len(found) != len(keys):
        return f"{what} must be a tuple of {len(keys)}, got {_built(found)}"
    inner = (_misfit(part, found[key], _join(name, key)) for key, part in _members(space))
    return next(filter(None, inner), None)


def _built(found: object) -> str:
    if isinstance(found, Mapping):
        return f"the keys {[*found]}"
    kind = type(found).__name__
    return f"a {kind} of {len(found)}" if isinstance(found, list | tuple) else f"a {kind}"


class ActionEncoder:
    """Converts a policy's batch of actions into what the environments expect.

    The result is a copy: an environment that writes into its action must not change the array that
    the policy's caller will store.
    """

    def __init__(self, space: Space[Any], n_envs: int) -> None:
        self._dtype = np.dtype(space.dtype)
        self._start = int(space.start) if isinstance(space, Discrete) else 0
        self._kinds = "iu" if self._dtype.kind in "iu" else "iufb"
        self._shape = (n_envs, *(space.shape or ()))

    def __call__(self, action: Array) -> Array:
        if action.shape != self._shape or action.dtype.kind not in self._kinds:
            raise ValueError(
                f"actions of shape {action.shape} and dtype {action.dtype} for environments that "
                f"take shape {self._shape}, {'integers' if self._kinds == 'iu' else self._dtype}"
            )
        encoded = action.astype(self._dtype)
        if self._start:
            encoded += self._dtype.type(self._start)
        return encoded


def random_actions(
    action: BoxSpec | DiscreteSpec, lead: tuple[int, ...], random: np.random.Generator
) -> Array:
    """Return uniformly random actions (*lead, *shape) of a space.

    A dimension without bounds lies within [-1, 1]; one with one bound, within 1 of it.
    """
    if isinstance(action, DiscreteSpec):
        return random.integers(action.n, size=lead)
    shape = (*lead, *action.shape)
    if np.dtype(action.dtype).kind != "f":
        low, high = action.low.astype(np.int64), action.high.astype(np.int64)
        return random.integers(low, high, shape, endpoint=True).astype(action.dtype)
    low, high = action.low.astype(np.float64), action.high.astype(np.float64)
    first = np.where(np.isfinite(low), low, np.minimum(-1.0, high - 1.0))
    last = np.where(np.isfinite(high), high, np.maximum(1.0, low + 1.0))
    return random.uniform(first, last, shape).astype(action.dtype)


def random_allowed_actions(spec: EnvSpec, obs: Array, random: np.random.Generator) -> Array:
    """Return a random action for each observation (B, ...), as its action mask allows."""
    if not spec.masked or isinstance(spec.observation, BoxSpec):
        return random_actions(spec.action, (len(obs),), random)
    mask = spec.observation.unpack(obs)[ACTION_MASK] != 0
    mask |= ~mask.any(axis=1, keepdims=True)
    action: Array = (mask * (1.0 - random.random(mask.shape))).argmax(axis=1)
    return action
