"""Custom code that runs during training.

class Plateau(Callback):
    def step(self, trainer): ...     # after each training step; see trainer.opt_steps
    def record(self, trainer):       # its metrics, in the next record
        return {"mine/distance": self.distance}

train_async(agent, make_env, config, callbacks=[Plateau()])

Does not know how a run trains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Protocol, SupportsFloat

from asyncrl.core.agent import Agent
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array

Event = Literal["evaluated", "saved", "published", "episodes", "actor_restarted", "actor_dropped"]
"""Methods of `Callback` that are called when something has happened."""

Events = deque[tuple[Event, tuple[object, ...]]]
"""What has happened, with its values, since callbacks were last called. Any thread may append."""


class Training(Protocol):
    """What callbacks may use of a trainer, whatever the source of its batches.

    Attributes:
        agent: The agent that learns.
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

    def evaluate(
        self,
        timeout_s: float = 0.0,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        greedy: bool | None = None,
    ) -> Evaluation | None:
        """Evaluate the current model; return None if that takes longer than `timeout_s`."""
        ...

    @property
    def last_record(self) -> Record:
        """The newest record of training, such as `agent/loss`; empty before the first one."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the run so far, those of `summary.json`."""
        ...

    def save(self) -> None:
        """Save a checkpoint now."""
        ...

    def set_env_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Give the training environments other keyword arguments from their next episode on."""
        ...

    def log(self, name: str, value: SupportsFloat) -> None:
        """Add a number to the next record, which stop conditions and `best_by` also read."""
        ...


class Callback:
    """Custom code in a run; each method does nothing unless it is overridden.

    Callbacks run in the learner's thread, so learning waits for them. Several are called in the
    given order, and closed in reverse. An exception in one ends the run, and names it.
    """

    def begin(self, trainer: Training) -> None:
        """Called at the start: recorders are open, and no experience has arrived yet."""

    def step(self, trainer: Training) -> None:
        """Called after each training step, with or without a batch.

        Evaluations, records, checkpoints and stop conditions that are due follow after it.
        """

    def record(self, trainer: Training) -> Record:
        """Return metrics for the record that is being made.

        Stop conditions and `best_by` see them. A prefix, as in `mine/x`, keeps their names apart
        from those of the run.
        """
        return {}

    def evaluated(self, trainer: Training, evaluation: Evaluation) -> None:
        """Act on an evaluation; its record also has `eval/model_version`."""

    def saved(self, trainer: Training, opt_steps: int) -> None:
        """Act after a checkpoint was copied, to be written in the background.

        Not called for the last one, which is saved after `end`.
        """

    def published(self, trainer: Training, opt_steps: int) -> None:
        """Act after a model was published to the actors; there are none without processes."""

    def episodes(self, trainer: Training, returns: Array, lengths: Array) -> None:
        """Act on training episodes that have ended; both arrays have one number for each."""

    def actor_restarted(self, trainer: Training, actor_id: int) -> None:
        """Act after an actor that died, or was at its memory limit, was started again."""

    def actor_dropped(self, trainer: Training, actor_id: int) -> None:
        """Act after an actor was given up; the run continues without it."""

    def state(self, trainer: Training) -> Mapping[str, Any]:
        """Return the state for `restore`; each checkpoint contains it.

        It may contain numbers, including infinite ones, text, None, and lists and dicts of these.
        As in JSON, tuples come back as lists, and the keys of dicts as text.
        """
        return {}

    def restore(self, trainer: Training, state: Mapping[str, Any]) -> None:
        """Load what `state` returned; called before `begin` if the run is resumed.

        States are assigned by class name; for several of one class, in the order of the list.
        """

    def end(self, trainer: Training) -> None:
        """Called after learning and the last evaluation, before the last model is saved.

        `trainer.summary()` has the numbers of the run.

        Not called if there is no time for it: after a failure or a signal.
        """

    def close(self, trainer: Training) -> None:
        """Release resources; always called, once, after the last record."""
