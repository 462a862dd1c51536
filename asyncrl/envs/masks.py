"""The wrapper that turns masks of environments into a field of their observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary

from asyncrl.core.env import ACTION_MASK
from asyncrl.core.env_checks import as_array, shown
from asyncrl.core.errors import ConfigError, EnvironmentFault

_METHOD = "action_masks"


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds a field `action_mask` to observations: which of the discrete actions are allowed now.

    Its values come from the environment's method `action_masks()`, or else from its
    `info["action_mask"]`. An observation that is not a dict becomes the field `observation`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                "ActionMasks wraps single environments, and this is a vector environment; wrap "
                "each of its environments when they are made"
            )
        super().__init__(env)
        if not isinstance(env.action_space, Discrete):
            raise ConfigError(
                f"ActionMasks needs one discrete action, and the action space is {env.action_space}"
            )
        self._n = int(env.action_space.n)
        inner = env.observation_space
        self._is_dict = isinstance(inner, Dict)
        fields = dict(inner.spaces) if isinstance(inner, Dict) else {"observation": inner}
        if ACTION_MASK in fields:
            raise ConfigError(
                f"observations already have the field {ACTION_MASK!r}, which masks actions without "
                "the wrapper ActionMasks; leave it out"
            )
        self.observation_space = Dict({**fields, ACTION_MASK: MultiBinary(self._n)})
        method: Callable[[], Any] | None = None
        if env.has_wrapper_attr(_METHOD):
            method = env.get_wrapper_attr(_METHOD)
        self._method = method

    def reset(self, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ANN401
        """Reset the environment."""
        obs, info = self.env.reset(**how)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        found = self._method() if self._method is not None else info.get(ACTION_MASK)
        mask = as_array(found)
        if mask.shape != (self._n,) or mask.dtype.kind not in "biuf":
            source = f"{_METHOD}()" if self._method is not None else f"info[{ACTION_MASK!r}]"
            raise EnvironmentFault(
                f"{source} of {self.env.unwrapped} must be one number for each of its {self._n} "
                f"actions, 0 where it is forbidden, got {shown(found)}. Let every reset and every "
                "step provide it"
            )
        fields = obs if self._is_dict else {"observation": obs}
        return {**fields, ACTION_MASK: (mask != 0).astype(np.int8)}
