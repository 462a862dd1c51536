"""Environments with one thing wrong each, and one with nothing wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from benchmarks import faults_in_process

END = 4.7
LENGTH = 7
"""Steps after which an episode is truncated, if it has not ended before."""


class Patient(gym.Env[Any, Any]):
    """Walks at random; each argument is something wrong, and takes effect from step 5 on.

    An episode ends beyond `END`, and otherwise after `LENGTH` steps.
    """

    def __init__(
        self,
        *,
        obs: Any = None,
        reward: Any = 1.0,
        space: Any = None,
        action_space: Any = None,
        flags: Any = None,
        own_random: bool = False,
        no_random: bool = False,
        reuse: bool = False,
        error: str = "",
        do: str = "",
        time_limit: int | None = LENGTH,
    ) -> None:
        self.observation_space = Box(-9, 9, (2,)) if space is None else space
        self.action_space = Discrete(3) if action_space is None else action_space
        self._obs, self._reward, self._flags = obs, reward, flags
        self._own = np.random.default_rng() if own_random else None
        self._no_random = no_random
        self._reused = np.zeros(2, np.float32) if reuse else None
        self._error, self._do = error, do
        self._limit = time_limit
        self._all_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = np.full(2, self._draw(), np.float32)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._all_steps += 1
        self._place = np.minimum(self._place + np.float32(0.1 + self._draw()), np.float32(8))
        if np.ndim(action) == 0:
            self._place[1] += np.float32(action) / 8
        sick = self._all_steps >= 5
        if sick and self._error:
            raise RuntimeError(self._error)
        if sick and self._do:
            _DEEDS[self._do]()
        terminated = bool(self._place[0] > END)
        truncated = self._limit is not None and self._steps >= self._limit
        flags = (terminated, truncated)
        if self._flags is not None:
            flags = self._flags(terminated or truncated)
        reward = self._reward if sick else 1.0
        return (
            (self._obs if sick and self._obs is not None else self._observe()),
            reward,
            *flags,
            {},
        )

    def _draw(self) -> float:
        if self._no_random:
            return 0.25
        return float((self._own or self.np_random).random())

    def _observe(self) -> Any:
        if self._reused is None:
            return self._place.copy()
        self._reused[:] = self._place
        return self._reused


def make(**flaws: Any) -> gym.Env[Any, Any]:
    """Make one plain environment, for `tests.envs.broken_envs:make`."""
    if "action_high" in flaws:
        high = flaws.pop("action_high")
        flaws["action_space"] = Box(-high, high, (1,))
    return Patient(**flaws)


def make_unlike_api(how: str) -> Any:
    """Make an environment that breaks Gymnasium's API in one way."""
    return Patient if how == "class" else OldReset() if how == "old reset" else UnlikeApi(how)


class UnlikeApi(Patient):
    """Answers otherwise than Gymnasium's API requires."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self._how = how
        if how == "no spaces":
            del self.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return obs if self._how == "reset without info" else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        ended = terminated or truncated
        flags = {"flag of text": "won" if ended else False, "flags": np.array([ended] * 2)}
        match self._how:
            case "4 values":
                return obs, reward, ended, info
            case "None":
                return None
        return obs, reward, flags.get(self._how, terminated), truncated, info


class OldReset(Patient):
    """Its `reset` is of the time before seeds."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def make_limited(limit: int = LENGTH) -> gym.Env[Any, Any]:
    """Make one whose time limit Gymnasium knows of."""
    return TimeLimit(Patient(time_limit=None), limit)


def make_vector(
    num_envs: int = 3, really: str = "NextStep", says: str | None = None, **flaws: Any
) -> SyncVectorEnv:
    """Make a vector environment, which may say something else of itself than it does."""
    env = SyncVectorEnv([lambda: Patient(**flaws)] * num_envs, autoreset_mode=AutoresetMode(really))
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode(says or really)}
    return env


class stale_final_obs(SyncVectorEnv):  # noqa: N801  # used like a function
    """Says SAME_STEP, and returns the last observation as if it were the next one's first."""

    def __init__(self) -> None:
        super().__init__([Patient] * 3, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        for i in np.flatnonzero(terminated | truncated):
            obs[i] = infos["final_obs"][i]
        return obs, rewards, terminated, truncated, infos


class make_silent(SyncVectorEnv):  # noqa: N801  # used like a function
    """Says NEXT_STEP, and begins the next episode in the step that ended one."""

    def __init__(self) -> None:
        super().__init__([Patient] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def step(self, actions: Any) -> Any:
        *answer, _ = super().step(actions)
        return *answer, {}


def _start_process() -> None:
    if not _started:
        _started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


def _fork() -> None:
    """Leave a process behind that holds all of this one's files open, and crash."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSEGV)


_started: list[subprocess.Popen[bytes]] = []
_DEEDS: dict[str, Callable[[], object]] = {
    **faults_in_process.PROCESS_FAULTS,
    "fork and crash": _fork,
    "start a process": _start_process,
}


def started_processes() -> list[subprocess.Popen[bytes]]:
    """Return what was started here, so that a test can end it."""
    found, _started[:] = [*_started], []
    return found
