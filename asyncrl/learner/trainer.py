"""The loop that all trainers share: take a batch, learn, run the services. Knows no source.

    with trainer:                          # begins the run, and ends it however the loop ends
        for batch in trainer.batches():    # until the run is to end
            trainer.learn(batch)
    print(trainer.result().stop_reason)

Where batches come from is what trainers differ in: actor processes (`AsyncTrainer`), environments
stepped in between (`Trainer`), or experience that is there already (`OfflineTrainer`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import ClassVar, Self, SupportsFloat, TypedDict

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import going_on_from
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, CountsEnvSteps, optimised
from asyncrl.core.callback import Callback
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Record, Recorder
from asyncrl.core.replay_buffer import TakesPriorities, pass_priorities_on
from asyncrl.core.settings import did_you_mean, has_methods
from asyncrl.core.types import Columns
from asyncrl.learner.callbacks import Callbacks
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.run_services import RunServices, RunServicesConfig
from asyncrl.learner.stop_conditions import StopCondition
from asyncrl.learner.thread_tuner import RoomMeter, ThreadTuner, alike, most_threads
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.verdict import Setup


class CommonParts(TypedDict, total=False):
    """What every way to train passes on to its trainer."""

    recorder: Recorder | None
    """Who keeps the numbers."""

    callbacks: Sequence[Callback]
    """What else is done in the course of the run; see `core/callback.py`."""

    run_config: Mapping[str, object] | None
    """Plain values for the recorder and for checkpoints."""


class TrainerParts(CommonParts, total=False):
    """What every trainer takes beside its own."""

    services: RunServicesConfig
    """When to evaluate, record and save."""

    checkpointer: Checkpointer | None
    """Where checkpoints go; without it none are saved."""

    stop: StopCondition | None
    """When to stop; without it only the interrupter or an error ends the run."""

    checkpoint: Checkpoint | None
    """What to go on from."""

    adaptive_threads: bool
    """Whether torch may compute with more threads than one, as `agent.threads` of `auto` has it."""

    closing: ExitStack
    """What is the trainer's to release, when its run is over."""


def check_parts(parts: CommonParts, taken: Iterable[str]) -> None:
    """Refuse arguments that nobody takes, which Python lets through where there are `parts`.

    So are a recorder and callbacks that are none: before anything starts.
    """
    known = sorted({*taken, *TrainerParts.__optional_keys__})
    for name in parts:
        if name not in known:
            raise ConfigError(f"there is no argument {name}{did_you_mean(name, known)}")
    recorder, callbacks = parts.get("recorder"), parts.get("callbacks", ())
    if recorder is not None and not has_methods(recorder, "start", "write", "close"):
        raise ConfigError(
            f"recorder must be an object that keeps records, got {recorder!r:.80}; give for "
            'instance recorder=JsonlRecorder(Path("metrics.jsonl")), of asyncrl.recorders.jsonl'
        )
    if not isinstance(callbacks, Sequence):
        kind = callbacks if isinstance(callbacks, type) else type(callbacks)
        name = kind.__name__ if issubclass(kind, Callback) else "MyCallback"
        raise ConfigError(
            f"callbacks must be a list, got {callbacks!r:.80}; give a list: callbacks=[{name}()]"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks takes objects of classes derived from asyncrl.Callback, and "
                f"{callback!r:.80} is none"
            )


class BaseTrainer(ABC):
    """Optimises an agent on batches from somewhere, and runs the services, until the run ends."""

    def __init__(
        self,
        agent: Agent,
        *,
        interrupter: Interrupter | None = None,
        evaluation: EvaluationSite | None = None,
        setup: Setup | None = None,
        parts: TrainerParts,
    ) -> None:
        """Make a trainer, last of all in a constructor: with a checkpoint it goes on from there."""
        check_parts(parts, ())  # again, for trainers that no builder has made
        self.agent = agent
        services = parts.get("services") or RunServicesConfig()
        self.interrupter = interrupter or Interrupter()
        self._run_config = parts.get("run_config") or {}
        self._scheduled = agent if isinstance(agent, CountsEnvSteps) else None
        self._agent_record: Mapping[str, SupportsFloat] = {}
        self._batch: Columns = {}
        self._has_begun = self._runs = self._has_learned = False
        self._closing = parts.get("closing") or ExitStack()
        self.services = RunServices(
            agent,
            services,
            self.interrupter,
            evaluation=evaluation,
            recorder=parts.get("recorder"),
            checkpointer=parts.get("checkpointer"),
            stop=parts.get("stop"),
            setup=setup,
            state=lambda: self._whole_state(save_replay=services.save.replay),
        )
        self._threads = ThreadTuner(
            most_threads(setup.actors if setup else 0) if parts.get("adaptive_threads") else 1,
            RoomMeter(self.services.watch),
        )
        self._callbacks = Callbacks(parts.get("callbacks", ()), self)
        if checkpoint := parts.get("checkpoint"):
            with going_on_from(checkpoint):
                self.services.restore(checkpoint)
                self._restore(checkpoint)
            self._callbacks.restore(checkpoint.meta["run"])

    # --- what trainers differ in ------------------------------------------------------------------

    @property
    @abstractmethod
    def env_steps(self) -> int:
        """Environment steps of the run so far."""

    @property
    @abstractmethod
    def _priorities(self) -> TakesPriorities | object:
        """Who hears how wrong the agent was about a batch, if it takes priorities."""

    @abstractmethod
    def _take(self, turns_left: int | None) -> Columns | None:
        """Return a batch, as `sample` does."""

    @abstractmethod
    def _metrics(self) -> Record:
        """Return what the source of batches has to record, since the call before."""

    @abstractmethod
    def _state(self, *, save_replay: bool) -> RunState:
        """Return what a checkpoint holds of it."""

    @abstractmethod
    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from what `_state` returned."""

    repeats: ClassVar[bool] = True
    """Whether two runs of one seed compute the same bits."""

    def _begin(self) -> None:  # noqa: B027  # nothing, where a source needs nothing
        """Let experience arrive; the services have started."""

    def _learned(self) -> None:  # noqa: B027  # nothing, where a source needs nothing
        """Do what follows an optimisation step."""

    def _end_learning(self) -> None:  # noqa: B027  # nothing, where a source needs nothing
        """Take note that the loop is over, before the last model is evaluated."""

    def _ends(self) -> Iterator[Callable[[], object]]:
        """Yield the steps of the end, with `_save_last` where it belongs among them."""
        if not self.interrupter.error:
            yield self._save_last

    def _release(self) -> Iterator[Callable[[], object]]:
        """Yield the steps that release what it holds, where nothing was begun."""
        yield from ()

    # --- a run ------------------------------------------------------------------------------------

    @property
    def opt_steps(self) -> int:
        """Optimisation steps of the run so far."""
        return self.services.counts.opt_steps

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end: a stop condition, a signal, the user, or a failure."""
        return self.interrupter.is_set

    def train(self) -> TrainResult:
        """Train until the run is to end; raise the first error of any part."""
        with self:
            if self._runs:
                self._loop()
        return self.result()

    def __enter__(self) -> Self:
        """Begin the run; one that is resumed at its end has nothing to do, and is left as it is."""
        if self._has_begun:
            raise ConfigError("this trainer has trained already; build another one for another run")
        if self.has_ended():
            self.close()
            return self
        self._has_begun = self._runs = True
        try:
            self.services.start(self._run_config, [self._metrics, self._threads.record])
            self._callbacks.begin()
            self._begin()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run; raise the first error of any part."""
        if self._runs:
            self._end(error)

    def batches(self) -> Iterator[Columns]:
        """Yield batches until the run ends, and run the services after each of them."""
        while not self.should_stop:
            batch = self.sample()
            if batch is not None:
                yield batch
            self.run_services()

    def run_step(self, turns_left: int | None = None) -> bool:
        """Run one step: sample, learn, run the services; return whether there was a batch."""
        batch = self.sample(turns_left)
        if batch is not None:
            self.learn(batch)
        self.run_services()
        return batch is not None

    def sample(self, turns_left: int | None = None) -> Columns | None:
        """Return a batch to learn from; None, soon, if there is none yet.

        No more are drawn at once than there are `turns_left`, this one included, if that is given.
        Raises the error of whichever part of the run has failed, so that no loop goes on alone.
        """
        self._check_runs()
        self.interrupter.raise_if_failed()
        return self._take(turns_left)

    def learn(self, batch: Columns) -> None:
        """Do one optimisation step, and count it."""
        self._batch = batch
        if self._scheduled is not None:
            self._scheduled.env_steps = max(self._scheduled.env_steps, self.env_steps)
        if self.repeats and self._threads.most > 1 and not self._has_learned:
            self._threads.most = alike(self.agent, batch, self._threads.most)
        self._has_learned = True
        self._agent_record = optimised(self.agent, batch)
        pass_priorities_on(self.agent, batch, self._priorities)
        self.services.counts.opt_steps += 1
        self._threads.step(self.services.watch.lap("opt"))
        self._learned()

    def run_services(self) -> None:
        """Call callbacks; evaluate, record, save and stop, whatever of it is due."""
        self.services.counts.env_steps = self.env_steps
        if self._callbacks:
            self._callbacks.step()
            self.services.watch.lap("callback")
        self.services.turn(self._numbers)
        self.services.watch.lap("other")

    def evaluate(self, timeout_s: float = 0.0) -> float | None:
        """Evaluate the model as it is now; return its score, which may make it the best one.

        Beside a process that evaluates, the score comes later: it is waited for as long as
        `timeout_s`, and None is returned where it is not there by then. It is recorded, and may
        make the model the best one, all the same.
        """
        self._check_runs()
        return self.services.evaluate(timeout_s)

    def save(self) -> None:
        """Save a checkpoint of the run as it is now, beside those that are due at intervals.

        It is copied here and written in the background; one that still waits to be written when a
        newer one is saved is dropped. Call it after `learn`, not between `sample` and `learn`.
        Where the trainer steps environments itself, it ends their episodes, as every checkpoint
        does: environments cannot be saved, so the run goes on with new episodes.

        Raises `ConfigError` if the run has no directory for checkpoints, and `NonFiniteModel`.
        """
        self._check_runs()
        self.services.watch.lap("other")
        self.services.counts.env_steps = self.env_steps
        if not self.services.save():
            raise ConfigError(
                "this run saves no checkpoints; build the trainer with checkpoint_dir"
            )

    def newest_record(self) -> dict[str, SupportsFloat]:
        """Return the agent's numbers of the newest optimisation step."""
        return {f"agent/{name}": value for name, value in self._agent_record.items()}

    def has_ended(self) -> bool:
        """Tell, before it begins, whether a run that is resumed has reached its end; say why."""
        return self.services.has_ended(self._metrics())

    def result(self) -> TrainResult:
        """Sum the run up."""
        return self.services.result()

    def close(self) -> None:
        """Release what a trainer holds that is not to train; one that has trained holds nothing."""
        if not self._has_begun:
            self._has_begun = True
            self.interrupter.take_steps(
                *self._release(), self.services.close_saver, self._closing.close
            )
            self.interrupter.raise_if_failed()

    def _check_runs(self) -> None:
        if not self._runs:
            raise ConfigError(
                "the run has not begun, or is over: put the loop into `with trainer:`, which "
                "begins and ends it, or call trainer.train()"
            )

    def _numbers(self) -> dict[str, SupportsFloat]:
        return {**self.newest_record(), **self._callbacks.record()}

    def _whole_state(self, *, save_replay: bool) -> RunState:
        groups, numbers = self._state(save_replay=save_replay)
        return RunState(groups, {**numbers, **self._callbacks.state()})

    def _loop(self) -> None:
        for batch in self.batches():
            self.learn(batch)

    def _end(self, error: BaseException | None) -> None:
        """End in the order that loses nothing; each step is taken whatever became of the others."""
        if error is None:
            self.interrupter.take_steps(self._finish)
        else:
            self.interrupter.fail(error)
        self._runs = False
        self.interrupter.take_steps(
            *self._ends(),
            self._close_services,
            *self._callbacks.closing(),
            self._close_saver,
            self._closing.close,
        )
        try:
            self.interrupter.raise_if_failed()
        except BaseException as first:
            if first is not error:  # which goes on by itself, with the others as its notes
                raise

    def _finish(self) -> None:
        self._threads.close()
        self._end_learning()
        self.services.counts.env_steps = self.env_steps
        self.services.finish()
        if not self.interrupter.urgent:
            self._callbacks.end()
        self.interrupter.stop("the loop ended")

    def _save_last(self) -> None:
        """Save what was learned; never a model that is not finite."""
        self.services.watch.lap("other")  # what came before is the end's, not the checkpoint's
        self.services.counts.env_steps = self.env_steps
        if not isinstance(self.interrupter.error, NonFiniteModel):
            self.services.save()

    def _close_services(self) -> None:
        self.services.counts.env_steps = self.env_steps
        self.services.close(self._numbers)

    def _close_saver(self) -> None:
        """Wait for the last checkpoint to be on disk; half of one is never seen by anybody."""
        self.services.close_saver(wait=not self.interrupter.hurry)
