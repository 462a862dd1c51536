"""Gymnasium's spaces as specs, and actions in the form their space wants. Steps nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from asyncrl.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.errors import ConfigError
from asyncrl.types import Array

__all__ = ["ActionEncoder", "spec_from_spaces"]


def spec_from_spaces(observation_space: Space[Any], action_space: Space[Any]) -> EnvSpec:
    """Describe one environment, given its two spaces.

    Observations and actions of more than 32 bits a float are declared float32, and the batches in
    this folder convert them: MuJoCo's float64 would double what is sent and stored for nothing.
    A `Discrete` observation becomes one int64 between its bounds.
    """
    return EnvSpec(_observation_spec(observation_space), _action_spec(action_space))


def _observation_spec(space: Space[Any]) -> BoxSpec:
    if isinstance(space, Box) and not space.dtype.hasobject:
        return _box_spec(space)
    if isinstance(space, Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
        return BoxSpec((), "int64", np.array(low), np.array(high))
    raise ConfigError(
        f"observation space {space} is not supported: observations must be Box or Discrete. "
        "Make it a Box in the environment's factory: gymnasium.wrappers.FlattenObservation joins "
        "Dict, Tuple and MultiDiscrete spaces, TransformObservation does anything else."
    )


def _action_spec(space: Space[Any]) -> BoxSpec | DiscreteSpec:
    if isinstance(space, Box) and not space.dtype.hasobject:
        return _box_spec(space)
    if isinstance(space, Discrete):
        return DiscreteSpec(int(space.n))
    raise ConfigError(
        f"action space {space} is not supported: policies choose Box or Discrete actions. "
        "Map one of these to it in the environment's factory with an ActionWrapper or with "
        "gymnasium.wrappers.TransformAction; a MultiDiscrete space, for instance, can be counted "
        "through as one Discrete."
    )


def _box_spec(space: Box) -> BoxSpec:
    if space.dtype.kind != "f" or space.dtype.itemsize <= 4:
        return BoxSpec(space.shape, space.dtype.name, space.low, space.high)
    with np.errstate(over="ignore"):  # beyond float32's range there is no bound
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # Inwards, so that an action on a rounded bound is still one that the environment accepts.
    up, down = np.float32(math.inf), np.float32(-math.inf)
    low = np.where(np.isfinite(low) & (low < space.low), np.nextafter(low, up), low)
    high = np.where(np.isfinite(high) & (high > space.high), np.nextafter(high, down), high)
    return BoxSpec(space.shape, "float32", low, high)


class ActionEncoder:
    """Turns a policy's batch of actions into what the environments expect.

    The result is a copy: an environment that writes into its action must not change what the
    policy's caller is about to store.
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
