"""A curriculum: keyword arguments of the training environments, by environment steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError


@dataclass
class EnvSchedule(Callback):
    """Gives the training environments other keyword arguments at given environment steps.

        callbacks=[EnvSchedule({0: {"level": 1}, 100_000: {"level": 2}})]

    Each change reaches the actors as one of `trainer.set_env_kwargs` does.
    """

    kwargs_at: Mapping[int, Mapping[str, Any]]
    """Keyword arguments by the number of environment steps from which on they hold."""

    _done: int = field(default=-1, init=False, repr=False)

    def __post_init__(self) -> None:
        given: Mapping[Any, Any] = self.kwargs_at
        for at, kwargs in given.items():
            if isinstance(at, bool) or not isinstance(at, int) or at < 0:
                raise ConfigError(
                    f"env_schedule needs whole numbers of environment steps, 0 or more, got {at!r}"
                )
            if not isinstance(kwargs, Mapping):
                raise ConfigError(
                    f"env_schedule at {at} environment steps must be a mapping of keyword "
                    f"arguments, got {kwargs!r:.80}"
                )

    def begin(self, trainer: Training) -> None:
        """Apply what holds from the start."""
        self.step(trainer)

    def step(self, trainer: Training) -> None:
        """Apply what has become due."""
        due = max((at for at in self.kwargs_at if at <= trainer.env_steps), default=-1)
        if due > self._done:
            self._done = due
            trainer.set_env_kwargs(self.kwargs_at[due])

    def state(self, trainer: Training) -> Mapping[str, Any]:
        """Return which change was the last."""
        kwargs = self.kwargs_at.get(self._done)
        return {"done": self._done, "kwargs": None if kwargs is None else dict(kwargs)}

    def restore(self, trainer: Training, state: Mapping[str, Any]) -> None:
        """Repeat no change, unless the schedule has another one in its place now."""
        done = state["done"]
        if self.kwargs_at.get(done) == state.get("kwargs"):
            self._done = done
