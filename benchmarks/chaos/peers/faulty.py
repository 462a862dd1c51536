"""CartPole, which misbehaves once, in one process, when a file appears. Does not need asyncrl."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.chaos.peers.scene import CAUSE, Beats, Scene


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that leaves word of each step, and misbehaves in one of the four ways."""

    def __init__(self, env: gymnasium.Env[Any, Any], scene: Scene, fault: str) -> None:
        super().__init__(env)
        self._scene, self._fault = scene, fault
        self._beats = Beats(scene)
        self._is_due = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, or misbehave."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._is_due and self._scene.flag.exists():
            self._is_due = False
            if self._scene.claim(self._beats.steps):
                self._misbehave()
                # Only a step after this one shows that the process goes on.
                return np.full_like(obs, np.nan), float("nan"), terminated, truncated, info
        self._beats.beat()
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close both."""
        self._beats.close()
        super().close()

    def _misbehave(self) -> None:
        match self._fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise RuntimeError(CAUSE)
            case "hang":
                while True:
                    time.sleep(3600.0)


def make_env(directory: str, fault: str = "") -> Any:  # noqa: ANN401  # untyped where this is used
    """Return the environment; without a fault, one that is well."""
    env = gymnasium.make("CartPole-v1")
    return Faulty(env, Scene(Path(directory)), fault) if fault else env
