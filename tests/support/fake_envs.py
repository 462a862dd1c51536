"""Small Gymnasium environments whose observations show their origin, and broken ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.core.env import PackedSpec
from asyncrl.core.types import Array

OBS_SPACE = Box(-np.inf, np.inf, (4,), np.float32)

Plan = Sequence[tuple[int, str]]
"""Length and end of each episode, over and over: "T" terminates, "C" truncates, "TC" does both."""

TERMINATING: Plan = [(3, "T")]
TRUNCATING: Plan = [(3, "C")]


class TellingEnv(gym.Env[Any, Any]):
    """Observes (environment, episode, step, a number drawn at the episode's start).

    The reward is 100 times the environment, plus 10 times the action, plus the step. A seeded reset
    starts the plan again.
    """

    def __init__(self, who: int = 0, plan: Plan = TERMINATING, *, reuse: bool = False) -> None:
        """`reuse` returns one and the same array each time, as some environments do."""
        self.observation_space = OBS_SPACE
        self.action_space = Discrete(5)
        self.closed = 0
        self._who = who
        self._plan = list(plan)
        self._reused = np.zeros(4, np.float32) if reuse else None
        self._episode = -1
        self._step = 0
        self._drawn = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode = 0 if seed is not None else self._episode + 1
        self._step = 0
        self._drawn = float(self.np_random.random())
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        length, end = self._plan[self._episode % len(self._plan)]
        assert self._step < length, "stepped beyond an episode's end"
        self._step += 1
        reward = float(100 * self._who + 10 * action + self._step)
        ended = self._step == length
        return self._observe(), reward, ended and "T" in end, ended and "C" in end, {}

    def close(self) -> None:
        self.closed += 1

    def _observe(self) -> Any:
        seen = (self._who, self._episode, self._step, self._drawn)
        if self._reused is None:
            return np.array(seen, np.float32)
        self._reused[:] = seen
        return self._reused


class SlowEnv(TellingEnv):
    """Takes its time, so that a run that waits for a test leaves the machine to others."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        return super().step(action)


class BrokenEnv(TellingEnv):
    """A telling environment that does something wrong at one step (0 is the reset), and closes."""

    def __init__(
        self,
        who: int = 0,
        *,
        at_step: int = 2,
        obs: Any = None,
        reward: Any = None,
        error: Exception | None = None,
        plan: Plan = TERMINATING,
    ) -> None:
        super().__init__(who, plan)
        self._at_step = at_step
        self._wrong_obs = obs
        self._wrong_reward = reward
        self._error = error

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**how)
        return self._spoil(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # type: ignore[override]
        obs, reward, terminated, truncated, info = super().step(action)
        if self._step == self._at_step and self._wrong_reward is not None:
            reward = self._wrong_reward
        return self._spoil(obs), reward, terminated, truncated, info

    def _spoil(self, obs: Any) -> Any:
        if self._step != self._at_step:
            return obs
        if self._error is not None:
            raise self._error
        return obs if self._wrong_obs is None else self._wrong_obs


NESTED_SPACE = Dict(
    {
        "who": Discrete(100),
        "at": Tuple((Box(0, 255, (1,), np.uint8), Box(0, np.inf, (1, 1), np.float64))),
        "drawn": Box(0, 1, (), np.float32),
    }
)


class NestedEnv(gym.ObservationWrapper[Any, Any, Any]):
    """A telling environment whose observations are fields within fields."""

    def __init__(self, env: TellingEnv, *, reuse: bool = False) -> None:
        """`reuse` returns one and the same dict of the same arrays each time."""
        super().__init__(env)
        self.observation_space = NESTED_SPACE
        self._reused = self._fields() if reuse else None

    def observation(self, observation: Any) -> Any:
        who, episode, step, drawn = observation
        obs = self._fields() if self._reused is None else self._reused
        obs["who"] = int(who)
        obs["at"][0][:], obs["at"][1][:], obs["drawn"][...] = episode, step, drawn
        return obs

    @staticmethod
    def _fields() -> dict[str, Any]:
        at = np.zeros(1, np.uint8), np.zeros((1, 1))
        return {"who": 0, "at": at, "drawn": np.zeros((), np.float32)}


class ActedEnv(gym.Env[Any, Any]):
    """Keeps the actions it was given in `acted`, and spoils arrays among them."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.observation_space = OBS_SPACE
        self.action_space = action_space
        self.acted: list[Any] = []

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.acted.append(action.copy() if isinstance(action, np.ndarray) else action)
        if isinstance(action, np.ndarray) and action.shape:
            action += 100
        return np.zeros(4, np.float32), 0.0, False, False, {}


def telling_makers(
    plans: Sequence[Plan], *, reuse: bool = False
) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Return a factory for each plan, of environments that know their own number."""
    return [partial(TellingEnv, i, plan, reuse=reuse) for i, plan in enumerate(plans)]


def nested_makers(
    plans: Sequence[Plan], *, reuse: bool = False
) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Return `telling_makers` of environments with nested observations."""

    def make(i: int, plan: Plan) -> gym.Env[Any, Any]:
        return NestedEnv(TellingEnv(i, plan), reuse=reuse)

    return [partial(make, i, plan) for i, plan in enumerate(plans)]


def tell_nested(spec: PackedSpec, packed: Array) -> Array:
    """Return packed observations of nested environments as those of telling ones."""
    fields = spec.unpack(packed)
    names = ("who", "at/0", "at/1", "drawn")
    return np.stack([fields[name].reshape(len(packed)) for name in names], 1, dtype=np.float32)


def make_env(**kwargs: Any) -> TellingEnv:
    """Make one plain environment, for `tests.support.fake_envs:make_env`."""
    return TellingEnv(**kwargs)


def make_vector_env(
    num_envs: int = 3, mode: AutoresetMode = AutoresetMode.NEXT_STEP, plan: Plan = TERMINATING
) -> SyncVectorEnv:
    """Make a vector environment, for `tests.support.fake_envs:make_vector_env`."""
    return SyncVectorEnv(telling_makers([plan] * num_envs), autoreset_mode=mode)
