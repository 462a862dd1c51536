"""The loop of every run: take a batch, learn, run the services.

    with trainer:                          # begins the run, and ends it however the loop ends
        for batch in trainer.batches():    # until the run ends
            trainer.learn(batch)
    print(trainer.result().stop_reason)

Does not know where batches come from: that is its `Source`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Protocol, Self, SupportsFloat

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import naming_resumed
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, as_number, counter_of, optimised
from asyncrl.core.callback import Callback, Event
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, ModelInfo
from asyncrl.core.recorder import BufferingRecorder, Record, Recorder
from asyncrl.core.replay_buffer import check_priorities, pass_priorities_on
from asyncrl.core.types import Columns
from asyncrl.learner.callbacks import Callbacks
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.learner_threads import LearnerThreads, RoomMeter, alike, most_threads
from asyncrl.learner.run_services import RunServices, RunServicesConfig
from asyncrl.learner.source import Source
from asyncrl.learner.step_metrics import StepMetrics
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.train_result import PolicyMaker, TrainResult
from asyncrl.metrics.metrics import describe

Metrics = Mapping[str, SupportsFloat]


class EvaluateApart(Protocol):
    """Evaluates a model with other environments, or acting otherwise, than the run does."""

    def __call__(
        self, model: ModelInfo, env_kwargs: Mapping[str, Any], greedy: bool | None
    ) -> Evaluation:
        """Return the evaluation. `greedy` is None to act as in the run's evaluations."""
        ...


class Strategy(Protocol):
    """A training loop. A custom one replaces the default and uses the trainer's methods."""

    def run(self, trainer: Any) -> None:  # noqa: ANN401  # the kind of trainer that it needs
        """Train until `trainer.should_stop`."""
        ...


class Trainer:
    """Optimises an agent on the batches of a source, and runs the services, until the run ends.

    Args:
        agent: What learns.
        source: Where the batches come from.
        services: When to evaluate, record and save.
        stop: When to stop. With None only the interrupter or an error ends the run.
        interrupter: Stops the run from outside, with a reason.
        recorder: Where metrics are written.
        callbacks: Custom code that runs during training; see `core/callback.py`.
        strategy: A custom training loop.
        evaluation: Where the model is evaluated. None evaluates none.
        evaluate_apart: Evaluates otherwise than the run does. None: `evaluate` takes no other
            arguments.
        checkpointer: Where checkpoints go. None saves none.
        checkpoint: What to resume from.
        run_config: Plain values for the recorder and for checkpoints.
        make_policy: Makes the policy of the result. Its description goes into checkpoints: what
            acts as they do, or learns from their replay, need not build an environment.
        adaptive_threads: Whether torch may compute with more threads than one, as `agent.threads`
            of `auto` has it.
        closing: What the trainer closes when its run is over.
    """

    env_change = EnvChange()
    """The keyword arguments that environments have got by `set_env_kwargs`."""

    _has_begun = _runs = _has_learned = False

    def __init__(
        self,
        agent: Agent,
        source: Source,
        *,
        services: RunServicesConfig | None = None,
        stop: StopCondition | StopFunction | None = None,
        interrupter: Interrupter | None = None,
        recorder: Recorder | None = None,
        callbacks: Sequence[Callback] = (),
        strategy: Strategy | None = None,
        evaluation: EvaluationSite | None = None,
        evaluate_apart: EvaluateApart | None = None,
        checkpointer: Checkpointer | None = None,
        checkpoint: Checkpoint | None = None,
        run_config: Mapping[str, object] | None = None,
        make_policy: PolicyMaker | None = None,
        adaptive_threads: bool = False,
        closing: ExitStack | None = None,
    ) -> None:
        """Make a trainer; with a `checkpoint`, one that resumes from there."""
        check_priorities(agent, source.buffer)
        self.agent, self.source = agent, source
        self.interrupter = interrupter or Interrupter()
        self._recorder, self._run_config = recorder, run_config or {}
        self._strategy, self._evaluate_apart = strategy, evaluate_apart
        self._scheduled = counter_of(agent)
        self._step_metrics, self._closing = StepMetrics(), closing or ExitStack()
        self.services = RunServices(
            agent,
            services or RunServicesConfig(),
            self.interrupter,
            evaluation=evaluation,
            recorder=recorder,
            checkpointer=checkpointer,
            stop=stop,
            setup=source.setup,
            make_policy=make_policy,
            state=self._state,
            note=self._note,
            warm_up_left=lambda: source.warm_up_left,
            repeats=source.repeats,
        )
        self.watch = self.services.watch
        most = most_threads(source.setup.actors if source.setup else 0) if adaptive_threads else 1
        self._threads = LearnerThreads(most, RoomMeter(self.watch))
        self._callbacks = Callbacks(callbacks, self)
        self._logged: dict[str, float] = {}
        if checkpoint:
            self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        with naming_resumed(checkpoint):
            self.services.restore(checkpoint)
            if changed := checkpoint.meta["run"].get("env_change"):
                self.env_change = EnvChange(**changed)
            self.source.restore(checkpoint, self.env_change)
            self._callbacks.restore(checkpoint.meta["run"])

    def _note(self, event: Event, *values: object) -> None:
        self.source.events.append((event, values))

    # --- a run ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return how far the run has come."""
        name = type(self).__name__
        return f"{name}({self.env_steps} env steps and {self.opt_steps} opt steps so far)"

    @property
    def env_steps(self) -> int:
        """Environment steps of the run so far."""
        return self.source.env_steps

    @property
    def opt_steps(self) -> int:
        """Optimisation steps of the run so far."""
        return self.services.counts.opt_steps

    @property
    def should_stop(self) -> bool:
        """Whether the run must end: a stop condition, a signal, the user, or a failure."""
        return self.interrupter.is_set

    def train(self) -> TrainResult:
        """Train until the run ends; raise the first error of any part."""
        with self:
            if self._runs:
                self._loop()
        return self.result()

    def __enter__(self) -> Self:
        """Begin the run. A resumed run that is already at its end is not started."""
        if self._has_begun:
            raise ConfigError("this trainer has been used; build another one for another run")
        if self.has_ended():
            self.close()
            return self
        self._has_begun = self._runs = True
        try:
            self.services.start(self._run_config, [self.source.metrics, self._threads.record])
            self._callbacks.begin()
            self.source.begin(self)
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
        """Return a batch to learn from; None after a short wait without one.

        `turns_left`, if given, limits how many batches are sampled ahead, this one included. Raises
        the error of any failed part of the run, so that no loop continues alone.
        """
        self._check_runs()
        self.interrupter.raise_if_failed()
        return self.source.take(turns_left)

    def learn(self, batch: Columns) -> Metrics:
        """Do one optimisation step and count it; return what the agent's `opt` returns."""
        if self.source.repeats and self._threads.most > 1 and not self._has_learned:
            self._threads.most = alike(self.agent, batch, self._threads.most)
        self._has_learned = True

        def step() -> Metrics:
            metrics = optimised(self.agent, batch)
            pass_priorities_on(self.agent, batch, self.source.priorities)
            return metrics

        return self.learn_by(step)

    def learn_by(self, step: Callable[[], Metrics]) -> Metrics:
        """Do one optimisation step by this function, and count it; return what it returns."""
        env_steps = self.env_steps
        if self._scheduled is not None:
            passed = env_steps if self.source.steps_environments else self.opt_steps
            self._scheduled.env_steps = max(self._scheduled.env_steps, passed)
        self.source.learns(env_steps)
        metrics = step()
        self._step_metrics.add(metrics)
        self.services.counts.opt_steps += 1
        self._threads.step(self.watch.lap("opt"))
        self.source.learned()
        return metrics

    def run_services(self) -> None:
        """Call callbacks; evaluate, record, save and stop if due."""
        services = self._counted()
        if self._callbacks:
            self._callbacks.step(self.source.events)
            self.watch.lap("callback")
        else:
            self.source.events.clear()
        services.turn(self._numbers)
        self.watch.lap("other")

    def evaluate(
        self,
        timeout_s: float = 0.0,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        greedy: bool | None = None,
    ) -> Evaluation | None:
        """Evaluate the current model; its score may make it the best one.

        The score is the mean return. The record has the others: `eval/return_min`, `_max`, `_std`.

        With an evaluating process the score comes later. Wait up to `timeout_s` seconds for it, and
        return None if it has not arrived by then. It is still recorded, and may still make the
        model the best one.

        `env_kwargs` are laid over the keyword arguments of the environment in evaluations.
        `greedy=False` acts as in training, `greedy=True` takes the best actions. With either,
        this process plays at once, while learning waits; the score is not comparable with those of
        the run, so it is only returned. So it is before the run begins and after it has ended.
        """
        if self._runs and env_kwargs is None and greedy is None:
            return self.services.evaluate(timeout_s)
        if self._evaluate_apart is None:
            self._check_runs()
            raise ConfigError(
                "evaluate(env_kwargs=..., greedy=...) needs the functions that build environments "
                "and policies; make the trainer by build_trainer, without an evaluator of "
                "your own"
            )
        self.watch.lap("other")
        model = self._counted().snapshot()
        score = self._evaluate_apart(model, env_kwargs or {}, greedy)
        self.watch.lap("eval")
        return score

    def save(self) -> None:
        """Save a checkpoint now, beside those at intervals.

        It is copied here and written in the background. A checkpoint that is still waiting to be
        written when a newer one is saved is dropped. Call it after `learn`, not between `sample`
        and `learn`. If the trainer steps environments itself, their episodes are cut, as in every
        checkpoint: environments cannot be saved, so the run continues with new episodes.

        Raises `ConfigError` if the run has no directory for checkpoints, and `NonFiniteModel`.
        """
        self._check_runs()
        self.watch.lap("other")
        if not self._counted().save():
            raise ConfigError(
                "this run saves no checkpoints; build the trainer with checkpoint_dir"
            )

    def log(self, name: str, value: SupportsFloat) -> None:
        """Add a number to the next record, in place of an earlier one of that name.

        Stop conditions and `best_by` read it too. A prefix, as in `mine/x`, keeps it apart from the
        run's own metrics, whose names are refused.
        """
        if not name or describe(name):
            raise ConfigError(
                f"log takes a name of your own, got {name!r}; give one with a prefix, as `mine/x`"
            )
        self._logged[name] = as_number(name, value)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until the recorder has written all records so far; return False after the timeout.

        Records are written in the background. The end of a run waits for them by itself.
        """
        recorder = self._recorder
        return not isinstance(recorder, BufferingRecorder) or recorder.flush(timeout_s)

    def set_env_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Give the training environments other keyword arguments from their next episode on.

        They are laid over those that the run began with, in place of those of an earlier call, and
        must be plain values, as in JSON. An actor rebuilds its environments once for each change,
        when an episode of one of them ends; episodes of its other environments are cut there. An
        actor that is restarted, and a run that is resumed, begin with the newest ones. Evaluations
        keep theirs.
        """
        plain = _plain_kwargs(kwargs)
        if plain != self.env_change.kwargs:
            change = EnvChange(number=self.env_change.number + 1, kwargs=plain)
            self.source.change_env(change)
            self.env_change = change

    def publish(self) -> None:
        """Give the newest model to what acts; refuse a model that is not finite."""
        self.source.publish()

    def snapshot(self) -> ModelInfo:
        """Return the agent's model; raise `NonFiniteModel` if it is not finite."""
        return self.services.snapshot()

    def has_ended(self) -> bool:
        """Return, before the run begins, whether a resumed run is already at its end; log why."""
        return self.services.has_ended(self.source.metrics())

    def result(self) -> TrainResult:
        """Return a summary of the run."""
        result = replace(self.services.result(), agent=self._step_metrics.last)
        return self.source.completed(result)

    @property
    def last_record(self) -> Record:
        """The newest record of training, such as `agent/loss`; empty before the first one."""
        return self.services.last_record

    def summary(self) -> dict[str, Any]:
        """Return the plain values of `result()`."""
        return self.result().summary()

    def close(self) -> None:
        """Release the resources of a trainer that will not train; without effect after a run."""
        if not self._has_begun:
            self._has_begun = True
            self.interrupter.take_steps(
                *self.source.end(self._save_last), self.services.close_saver, self._closing.close
            )
            self.interrupter.raise_if_failed()

    def _check_runs(self) -> None:
        if not self._runs:
            raise ConfigError(
                "the run has not begun, or is over: put the loop into `with trainer:`, which "
                "begins and ends it, or call trainer.train()"
            )

    def _counted(self) -> RunServices:
        """Return the services, which count environment steps here and only here."""
        self.services.counts.env_steps = self.env_steps
        return self.services

    def _numbers(self) -> dict[str, SupportsFloat]:
        logged, self._logged = self._logged, {}
        agent = {f"agent/{name}": value for name, value in self._step_metrics.take().items()}
        return {**agent, **self._callbacks.record(), **logged}

    def _state(self, *, save_replay: bool, passing: bool) -> RunState:
        groups, numbers = self.source.state(save_replay=save_replay, passing=passing)
        change = {"env_change": asdict(self.env_change)} if self.env_change.number else {}
        return RunState(groups, {**numbers, **change, **self._callbacks.state()})

    def _loop(self) -> None:
        if self._strategy is not None:
            self._strategy.run(self)
            return
        for batch in self.batches():
            self.learn(batch)

    def _end(self, error: BaseException | None) -> None:
        """End in the order that loses nothing; each step runs even if others fail."""
        if error is None:
            self.interrupter.take_steps(self._finish)
        else:
            self.interrupter.fail(error)
        self._runs = False
        self.interrupter.take_steps(
            *self.source.end(self._save_last),
            lambda: self._counted().close(self._numbers),
            *self._callbacks.closing(),
            self.services.close_saver,
            self._closing.close,
        )
        try:
            self.interrupter.raise_if_failed()
        except BaseException as first:
            if first is not error:  # which is being raised already; the others become its notes
                raise

    def _finish(self) -> None:
        self._threads.close()
        self.source.finish()
        self._counted().finish()
        if not self.interrupter.urgent:
            self._callbacks.end(self.source.events)
        self.interrupter.stop("the loop ended")

    def _save_last(self) -> None:
        """Save the last model, unless it is not finite."""
        self.watch.lap("other")  # time so far is not the checkpoint's
        services = self._counted()
        if not isinstance(self.interrupter.error, NonFiniteModel):
            services.save()


def _plain_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as actors and checkpoints get them; refuse what JSON changes."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(kwargs), allow_nan=False))
        if plain == dict(kwargs):
            return plain
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        "keyword arguments of environments must be a mapping of names to numbers, text, None, and "
        f"lists and dicts of these, got {kwargs!r:.200}"
    )
