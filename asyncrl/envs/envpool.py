"""EnvPool's environments: made by its C++ threads, stepped as one batch.

Uses the environments and settings as EnvPool has them. If these change the learner's rewards or
episode ends of an Atari game, by clipping or single lives, returns and evaluations are still those
of whole games.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import envpool
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.core.env import EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.vector import FrameStacks, VectorBatch

_OURS = {"batch_size", "env_type", "num_envs", "seed"}


def build(env_id: str, n_envs: int, settings: Mapping[str, Any]) -> EnvPoolBatch:
    """Make environments, named as in `envpool:Pong-v5`; `settings` are those of `envpool.make`."""
    return EnvPoolBatch(_pool(env_id, n_envs, settings))


def make_vector(env_id: str, n_envs: int, settings: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Make the bare vector environment below."""
    return _pool(env_id, n_envs, settings)


class EnvPoolBatch:
    """A `BatchEnv` of EnvPool environments."""

    checks_itself = True

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self._env = VectorBatch(pool)
        n_frames, shape = pool.n_frames, self._env.spec.observation.shape
        stacked = n_frames > 1 and shape[:1] == (n_frames,)
        self._stacks = FrameStacks(pool.num_envs, n_frames) if stacked else None
        self.n_frames = n_frames if stacked else 1
        """Frames per observation; a stack can be rebuilt from the newest frame of each."""

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one environment."""
        return self._env.spec

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self._env.n_envs

    def reset(self, seed: int) -> Array:
        """Reset all environments, in a new pool: EnvPool takes seeds only when it makes one."""
        obs = self._env.reset(seed)
        if self._stacks is not None:
            self._stacks.begin(obs)
        return obs

    def step(self, action: Array) -> EnvStep:
        """Step all environments."""
        out = self._env.step(action)
        if self._stacks is not None:
            begun = None if out.stepped is None else ~out.stepped
            self._stacks.step(out.obs, begun)
        infos = self._pool.infos
        if "lives" not in infos:
            return out
        # For an Atari game, EnvPool also returns the score, and whether the game itself is over.
        score = infos["reward"].astype(np.float32)
        if out.stepped is not None:
            score[~out.stepped] = 0.0
        over = out.truncated | (out.terminated & infos["terminated"].astype(bool))
        return out._replace(score=score, over=over)

    def close(self) -> None:
        """End its threads."""
        self._env.close()


def _pool(env_id: str, n_envs: int, settings: Mapping[str, Any]) -> _Pool:
    task = env_id.removeprefix("envpool:")
    if task not in envpool.list_all_envs():
        near = difflib.get_close_matches(task, envpool.list_all_envs(), 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"{env_id!r}: EnvPool has no environment {task!r}{hint}")
    if refused := _OURS & settings.keys():
        raise ConfigError(
            f"{env_id!r}: {', '.join(sorted(refused))} cannot be set here: the run sets how many "
            "environments are stepped together, and derives their seeds from its own"
        )
    try:
        return _Pool(task, n_envs, settings)
    except TypeError as error:  # several lines long; the last one lists all settings
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{env_id!r}: EnvPool rejects {dict(settings)}: {reason}") from error


class _Pool(VectorEnv[Any, Any, Any]):
    """A pool that each seeded reset replaces by a new one."""

    def __init__(self, task: str, n_envs: int, settings: Mapping[str, Any]) -> None:
        # Actors are separate processes, so one thread each is enough.
        self._make = {"num_threads": 1, **settings, "num_envs": n_envs}
        self._task = task
        with warnings.catch_warnings(action="ignore"):  # float64 bounds become float32 ones
            spec = envpool.make_spec(task, **self._make)
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self.n_frames: int = getattr(spec.config, "stack_num", 1)
        self.frame_skip: int = getattr(spec.config, "frame_skip", 1)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = n_envs
        self.infos: dict[str, Any] = {}
        """Infos of the last step."""
        self._pool: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        if self._pool is None or seed is not None:
            self._pool = None  # the old pool's threads end before the new one's start
            self._pool = self._make_pool(seed)
        obs, self.infos = self._pool.reset()
        return obs, self.infos

    def step(self, actions: Array) -> tuple[Array, Array, BoolArray, BoolArray, dict[str, Any]]:
        obs, rewards, terminated, truncated, self.infos = self._pool.step(actions)
        return obs, rewards, terminated, truncated, self.infos

    def close_extras(self) -> None:
        """End the threads."""
        self._pool = None

    def _make_pool(self, seed: int | None) -> Any:  # noqa: ANN401  # its class is made on the fly
        settings = self._make if seed is None else {**self._make, "seed": seed}
        with warnings.catch_warnings(action="ignore"):
            pool = envpool.make(self._task, env_type="gymnasium", **settings)
            _ = pool.observation_space  # created, with a warning, on first access
        return pool
