"""A small environment that triggers a named fault at a chosen moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from benchmarks.faults_in_process import PROCESS_FAULTS

Moment = Literal["make", "reset", "step", "close"]


class MisbehavingEnv(gymnasium.Env[Any, Any]):
    """Observations are zeros; an episode has ten steps.

    `do` names one fault of `PROCESS_FAULTS`, or several, joined by `+`. It happens at each moment
    `at`, in steps from number `after` on. With `when`, the path of a file, it waits until that file
    exists; a file with the suffix `.done` is written before it happens.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, do: str = "nothing", at: Moment = "step", after: int = 0, when: str = ""
    ) -> None:
        self._do = [PROCESS_FAULTS[name] for name in do.split("+")]
        self._at, self._after, self._when = at, after, when
        self._steps = 0
        self._act("make")

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401  # Gymnasium's
        """Begin an episode."""
        self._act("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Make a step."""
        del action
        self._steps += 1
        if self._steps > self._after:
            self._act("step")
        return np.zeros(2, np.float32), 1.0, self._steps % 10 == 0, False, {}

    def close(self) -> None:
        """End."""
        self._act("close")

    def _act(self, moment: Moment) -> None:
        if moment != self._at:
            return
        if self._when:
            asked = Path(self._when)
            if not asked.exists():
                return
            asked.with_suffix(".done").touch()
        for do in self._do:
            do()
