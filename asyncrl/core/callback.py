"""What users do in the course of a run, beside what it does by itself.

class Plateau(Callback):
    def step(self, trainer): ...     # after each turn; trainer.opt_steps tells how far it is
    def record(self, trainer):       # its numbers, in the next record
        return {"mine/distance": self.distance}

train_async(agent, make_env, config, callbacks=[Plateau()])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from asyncrl.core.agent import Agent
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Record


class Training(Protocol):
    """What callbacks use of a trainer, whatever its batches come from.

    Attributes:
        agent: The one that learns.
        interrupter: Ends the run: `trainer.interrupter.stop("the reason")`.
    """

    agent: Agent
    interrupter: Interrupter

    @property
    def opt_steps(self) -> int:
        """Optimisation steps of the run so far."""
        ...

    @property
    def env_steps(self) -> int:
        """Environment steps of the run so far."""
        ...

    def evaluate(self, timeout_s: float = 0.0) -> float | None:
        """Evaluate the model as it is now; return its score if it is there within that time."""
        ...

    def save(self) -> None:
        """Save a checkpoint of the run as it is now."""
        ...


class Callback:
    """Takes part in a run; each method does nothing unless it is overridden.

    They are called in the learner's thread, so whatever one does, learning waits for it. Several
    are called in the order in which they are given, and closed in the opposite one. What one raises
    ends the run, and bears its name.
    """

    def begin(self, trainer: Training) -> None:
        """Begin: recorders are open, and no experience has come yet."""

    def step(self, trainer: Training) -> None:
        """Act after a turn, in which a batch was learned from or waited for in vain.

        What is due of evaluations, records, checkpoints and the end comes after it.
        """

    def record(self, trainer: Training) -> Record:
        """Return numbers for the record that is being made.

        Stop conditions and `best_by` see them. Names with a prefix of their own, as `mine/x`, stay
        clear of the run's.
        """
        return {}

    def state(self, trainer: Training) -> Mapping[str, Any]:
        """Return what `restore` needs; it is kept in each checkpoint.

        Numbers, infinite ones too, text, None, and lists and dicts of these can be kept.
        """
        return {}

    def restore(self, trainer: Training, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; before `begin`, where a run is resumed.

        States go by the names of classes; of several of one class, in the order of the list.
        """

    def end(self, trainer: Training) -> None:
        """Act once learning is over and the last model evaluated, before it is saved.

        Not called where there is no time for more: after a failure, or a signal.
        """

    def close(self, trainer: Training) -> None:
        """Release what it holds; called in any case, once, after the last record."""
