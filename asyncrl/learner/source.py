"""Where the batches of a run come from: the contract, and existing experience as a source.

The others are in `actor_source.py`, whose actors are processes, and in `run/synchronous.py`,
which steps environments between batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Protocol, SupportsFloat

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.callback import Events
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import ReplayBuffer, replay_groups, restore_replay
from asyncrl.core.types import Columns
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.stopwatch import Stopwatch
from asyncrl.metrics.verdict import Setup


class Learning(Protocol):
    """What a source may use of the trainer that it serves.

    Attributes:
        interrupter: Ends the run.
        watch: Takes the learner's time by phase.
    """

    interrupter: Interrupter
    watch: Stopwatch

    @property
    def opt_steps(self) -> int:
        """Optimisation steps of the run so far."""
        ...

    def snapshot(self) -> ModelInfo:
        """Return the agent's model; raise if it is not finite."""
        ...

    def learn_by(self, step: Callable[[], Mapping[str, SupportsFloat]]) -> object:
        """Do one optimisation step by this function, and count it."""
        ...

    def save(self) -> None:
        """Save a checkpoint now."""
        ...

    def run_services(self) -> None:
        """Call callbacks; evaluate, record, save and stop if due."""
        ...


class Source(ABC):
    """Gives a trainer its batches, and says what it knows of their origin.

    A trainer calls `restore` at most once, then `begin`, and then `take`, `learns` and `learned` in
    turn; `finish` after the last step, and at last what `end` yields. A trainer that will not train
    only calls `end`.
    """

    repeats: ClassVar[bool] = True
    """Whether two runs of one seed compute the same bits."""

    steps_environments: ClassVar[bool] = True
    """Whether schedules count environment steps; optimisation steps otherwise."""

    setup: Setup | None = None
    """What the verdict must know of the run."""

    _learning: Learning | None = None

    def __init__(self, buffer: ReplayBuffer, events: Events | None = None) -> None:
        """Make a source; `events` is where its parts note what has happened."""
        self.buffer = buffer
        self.events: Events = deque() if events is None else events
        """What callbacks are called for."""

    @property
    @abstractmethod
    def env_steps(self) -> int:
        """Environment steps of the run so far."""

    @property
    def warm_up_left(self) -> int:
        """Transitions that are needed before the first batch."""
        return 0

    @property
    def priorities(self) -> object:
        """The object that takes TD errors, if it is an `AcceptsPriorities`."""
        return self.buffer

    def begin(self, learning: Learning) -> None:
        """Start; the trainer's services have started."""
        self._learning = learning

    @property
    def learning(self) -> Learning:
        """The trainer that has begun."""
        assert self._learning is not None  # noqa: S101  # trainers see to it
        return self._learning

    @abstractmethod
    def take(self, turns_left: int | None) -> Columns | None:
        """Return a batch; None after a short wait without one.

        `turns_left`, if given, is how many batches the loop takes before it collects again.
        """

    def learns(self, env_steps: int) -> None:  # noqa: B027  # nothing, where no observer is
        """Note that an optimisation step begins."""

    def learned(self) -> None:  # noqa: B027  # nothing, where a source needs nothing
        """Note that an optimisation step is done."""

    def publish(self) -> None:  # noqa: B027  # nothing, where the learner's own agent acts
        """Let what acts use the newest model."""

    def collect(self, env_steps: int) -> None:
        """Collect as much experience, without a batch."""
        raise ConfigError(f"{type(self).__name__} steps no environments, so it collects nothing")

    def change_env(self, change: EnvChange) -> None:
        """Give the environments other keyword arguments; raise if they cannot get them."""
        raise ConfigError(
            f"{type(self).__name__} steps no environments that could get other keyword arguments"
        )

    @abstractmethod
    def metrics(self) -> Record:
        """Return the metrics since the last call."""

    @abstractmethod
    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """Return this part of a checkpoint. One that is `passing` must change nothing."""

    @abstractmethod
    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Restore what `state` returned, and the change of environments then in force."""

    def finish(self) -> None:  # noqa: B027  # nothing, where a source needs nothing
        """Note that learning is over; the last model is about to be evaluated."""

    def end(self, save: Callable[[], object]) -> Iterator[Callable[[], object]]:
        """Yield the steps that end the run, with `save` at its place if the run has begun."""
        if self._learning is not None and not self._learning.interrupter.error:
            yield save

    def completed(self, result: TrainResult) -> TrainResult:
        """Return the result with what this source knows of the run."""
        return result


class DataSource(Source):
    """Samples from a filled buffer. No environment is stepped."""

    steps_environments = False
    env_steps = 0
    """Always 0: a run on data makes no steps."""

    def __init__(self, buffer: ReplayBuffer, *, batch_size: int = 128) -> None:
        """Use a buffer that holds transitions."""
        if not len(buffer):
            raise ConfigError("offline training needs a filled buffer; this one has no transition")
        super().__init__(buffer)
        self.batch_size = batch_size

    def take(self, turns_left: int | None) -> Columns:
        """Return a batch."""
        batch = self.buffer.sample(self.batch_size)
        self.learning.watch.lap("sample")
        return batch

    def metrics(self) -> Record:
        """Return the size of the replay."""
        return {"replay/size": float(len(self.buffer))}

    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """Return the replay, if it is saved."""
        return RunState(replay_groups(self.buffer, save=save_replay), {})

    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Restore the replay, if it was saved."""
        sampled = checkpoint.count("opt_steps") * self.batch_size
        restore_replay(self.buffer, checkpoint.groups, sampled=sampled)
