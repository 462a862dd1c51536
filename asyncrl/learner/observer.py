"""What may watch the experience of a run on its way: the contract of observers.

An observer must not raise, must return soon, and keeps what it needs: arrays change after a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.env import EnvDescription
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Experience, ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.types import Columns


class Observer:
    """Watches what arrives, and what is learned from it; this one does nothing.

    The receiving thread calls `message` and `pushed`; the learner's thread calls the others.
    """

    def begin(self) -> None:
        """Begin, before anything happens in the run; may raise."""

    def message(self, message: Experience) -> None:
        """See a message that is about to be stored; its arrays do not change any more."""

    def pushed(self, segments: int) -> None:
        """See that this number of its segments was pushed, under the lock of the replay."""

    def sampled(self, batch: Columns, count: int) -> None:
        """See what was sampled for this number of transitions, under the lock of the replay."""

    def reprioritised(self) -> None:
        """See that the TD errors of the newest batch were set in the replay."""

    def rewards(self, goal_reward: Any) -> None:  # noqa: ANN401  # in JSON
        """See that the replay computes rewards as other environments do from here on."""

    def took(self) -> None:
        """See that a batch is given to the loop."""

    def learns(self, env_steps: int) -> None:
        """See that an optimisation step begins."""

    def published(self, model: ModelInfo) -> None:
        """See a model that is published to actors."""

    def record(self) -> Record:
        """Return numbers for the next record, by names with a separate prefix."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """Return plain values for a checkpoint, under a separate name; the state is copied now."""
        return {}

    def close(self) -> None:
        """End; may be called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an observer may know of the run that it watches."""

    seed: int
    schema: SegmentSchema
    env: EnvDescription
    settings: Mapping[str, object]
    """Plain values of all settings."""

    checkpoint: Checkpoint | None
    """What the run is resumed from."""

    interrupter: Interrupter
    learners: int = 1


MakeObserver = Callable[[Observed], Observer]
"""Makes an observer of a run whose parts are built; raises `ConfigError` if it cannot watch it."""
