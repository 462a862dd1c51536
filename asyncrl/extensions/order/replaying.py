"""Replays an asynchronous run whose order was recorded: the same parameters again, bit for bit.

    trainer = build_replay_trainer("runs/mine")
    with trainer:
        trainer.run_until(4700)
        breakpoint()                      # the next optimisation steps, one by one:
        for batch in trainer.batches():
            trainer.learn(batch)

Everything happens in one thread: no actors, no environments, no clocks. `recording.py` says
what is recorded. Builds the agent and the replay as the run did; the file says what it was built
for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.callback import Callback
from asyncrl.core.env import description_of
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.goals import ComputesRewards
from asyncrl.core.measured import assume
from asyncrl.core.messages import EnvChange
from asyncrl.core.recorder import Record, Recorder
from asyncrl.core.replay_buffer import AcceptsPriorities, ReplayBuffer, in_batches, restore_replay
from asyncrl.core.settings import from_plain
from asyncrl.core.torch_threads import set_torch_threads
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.extensions.order.log import (
    Event,
    Learns,
    OrderLog,
    Published,
    Pushed,
    Reprioritised,
    Resumed,
    Rewards,
    Sampled,
    Threads,
    Took,
    checksum_of,
)
from asyncrl.extensions.order.recording import ORDER_FILE
from asyncrl.learner.source import Source
from asyncrl.learner.trainer import Trainer
from asyncrl.metrics.machine import machine
from asyncrl.run.plan import RunPlan
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf

logger = logging.getLogger(__name__)

_MATTERS = ("processor", "gpus", "torch", "numpy", "python")
"""What a machine's description says about the bits that it computes."""


class ReplayedSource(Source):
    """Repeats the learner's part of a run from its order, up to each optimisation step."""

    def __init__(
        self,
        agent: Agent,
        make_buffer: Callable[[], ReplayBuffer],
        order: OrderLog,
        *,
        batch_size: int,
    ) -> None:
        """Make a source from what the run began with."""
        super().__init__(make_buffer())
        self._agent, self._make_buffer = agent, make_buffer
        self.order = order
        self.stored = self.sampled = self.compared = 0
        """Transitions stored and sampled so far, and published models that were compared."""
        self.differs: tuple[int, int] | None = None
        """Optimisation steps of the last model that equals the run's, and of the first that does
        not; None while all are equal."""
        self._batch_size = batch_size
        self._events = self._with_steps(order.events())
        self._env_steps = 0
        self._drawn: Iterator[Columns] = iter(())
        self._taken: Columns = {}
        self._td_errors: tuple[IntArray, Array] | None = None
        self._equal_until = self._checksum_before_callbacks = 0

    @property
    def env_steps(self) -> int:
        """Environment steps of the run at this optimisation step."""
        return self._env_steps

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Keep TD errors until the moment at which the run has set them."""
        self._td_errors = index, td_error

    @property
    def priorities(self) -> ReplayedSource:
        """This source: it keeps TD errors."""
        return self

    def change_env(self, change: EnvChange) -> None:
        """Do nothing: what the changed environments returned is in the record, as are rewards."""

    def take(self, turns_left: int | None) -> Columns | None:
        """Repeat everything up to the next optimisation step; return its batch."""
        for event in self._events:
            if isinstance(event, Learns):
                self._env_steps = event.env_steps
                return self._taken
            self._repeat(event)
        self.learning.interrupter.stop(
            "the run ended here"
            if self.order.ended
            else "the record ends here, before the end of the run"
        )
        return None

    def learned(self) -> None:
        """Note the model, which callbacks may change: the run publishes some before they do."""
        if self.differs is None:
            self._checksum_before_callbacks = checksum_of(self._agent.model_info().params)

    def _repeat(self, event: Event) -> None:
        match event:
            case Pushed(segments):
                self.stored += self.buffer.push(*self.order.pop(segments))
            case Sampled(count):
                self._sample(count)
            case Took():
                self._taken = next(self._drawn)
            case Reprioritised() | Rewards():
                self._change_buffer(event)
            case Threads(count):
                set_torch_threads(count)
            case Published(opt_steps, checksum):
                self._compare(opt_steps, checksum)
            case Resumed():
                self._resume(event)

    def _with_steps(self, events: Iterator[Event]) -> Iterator[Event]:
        """Name the optimisation step at which the file is damaged."""
        try:
            yield from events
        except CheckpointError as error:
            step = self.learning.opt_steps
            raise CheckpointError(
                f"{error}; the run can be replayed up to optimisation step {step}"
            ) from error

    def _sample(self, count: int) -> None:
        together = self.buffer.sample(count)
        self.sampled += count
        ahead = count > self._batch_size
        self._drawn = iter(in_batches(together, self._batch_size) if ahead else [together])

    def _change_buffer(self, event: Reprioritised | Rewards) -> None:
        if isinstance(event, Rewards):
            if isinstance(self.buffer, ComputesRewards):
                self.buffer.compute_as(event.goal_reward)
            return
        assert isinstance(self.buffer, AcceptsPriorities)  # noqa: S101  # so it was in the run
        assert self._td_errors is not None  # noqa: S101  # of the last optimisation step
        self.buffer.update_priorities(*self._td_errors)

    def _resume(self, resumed: Resumed) -> None:
        """Do what a resumed run has done with the state of its checkpoint."""
        self._drawn = iter(())
        self._agent.load_state(self._agent.state())
        if not resumed.replay:
            self.buffer = self._make_buffer()
            restore_replay(self.buffer, {}, sampled=self.learning.opt_steps * self._batch_size)
        if resumed.changed:
            logger.warning(
                "the run was resumed at optimisation step %d with changed settings, which a replay "
                "does not have: %s",
                self.learning.opt_steps,
                "; ".join(resumed.changed),
            )

    def _compare(self, opt_steps: int, checksum: int) -> None:
        if not checksum or self.differs is not None:
            return
        self.compared += 1
        before, now = self._checksum_before_callbacks, checksum_of(self._agent.model_info().params)
        if checksum in {before, now}:
            self._equal_until = opt_steps
            return
        self.differs = self._equal_until, opt_steps
        logger.warning(
            "the model published at optimisation step %d differs from the run's, those up to step "
            "%d were equal",
            opt_steps,
            self._equal_until,
        )

    def metrics(self) -> Record:
        """Return how much was stored."""
        return {"replay/size": float(len(self.buffer)), "samples_total": float(self.stored)}

    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """Return nothing: a replay saves no checkpoints."""
        return RunState({}, {})

    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Refuse: a replay begins where its run began."""
        raise NotImplementedError("a replay begins where its run began, never at a checkpoint")


class ReplayedTrainer(Trainer):
    """Learns again what a run has learned.

    It has the methods of every trainer, so the run's callbacks can be given again. It neither
    evaluates nor saves.
    """

    source: ReplayedSource

    def run_until(self, opt_steps: int | None = None) -> None:
        """Repeat the run up to this optimisation step; by default to its end."""
        while not self.should_stop and (opt_steps is None or self.opt_steps < opt_steps):
            self.run_step()

    def evaluate(
        self,
        timeout_s: float = 0.0,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        greedy: bool | None = None,
    ) -> Evaluation | None:
        """Return None, as if the score had not arrived yet; a callback of the run may ask."""
        return None

    def save(self) -> None:
        """Do nothing: a callback of the run may ask, and the run has saved."""


def replay_run(
    run_dir: str | PathLike[str],
    *,
    until: int | None = None,
    recorder: Recorder | None = None,
    callbacks: Sequence[Callback] = (),
) -> ReplayedTrainer:
    """Repeat a run of `asyncrl train --record-order`, and return the trainer.

    `until` is a number of optimisation steps; by default the whole run is repeated. Takes the
    arguments of `build_replay_trainer`.
    """
    order = Path(run_dir) / ORDER_FILE
    trainer = build_replay_trainer(order, recorder=recorder, callbacks=callbacks)
    with trainer:
        trainer.run_until(until)
    return trainer


def build_replay_trainer(
    order: str | PathLike[str],
    agent: AgentConfig | None = None,
    config: RunConfig | None = None,
    *,
    make_processor: Callable[[], StepProcessor] | None = None,
    recorder: Recorder | None = None,
    callbacks: Sequence[Callback] = (),
) -> ReplayedTrainer:
    """Build the learner's part of a run again.

    Args:
        order: The file that the run has written: that of `record_order`, or `order` in the
            directory of `asyncrl train --record-order`.
        agent: The run's agent. None takes what the file says, which is all unless objects of your
            own, such as networks, are among the settings.
        config: The run's settings; as with `agent`.
        make_processor: The run's, if it had one.
        recorder: Where numbers are written.
        callbacks: Those of the run, if they change its agent. Those that the file names are made
            again without being passed.
    """
    log = OrderLog(Path(order))
    head = log.head
    if agent is None or config is None:
        config = its = _config_in(log)
        make_processor = make_processor or its.parts.make_processor
        callbacks = [*its.parts.make_callbacks(), *callbacks]
    else:
        config = replace(config, agent=agent)
    _warn_of_machine(head["machine"])
    assume(head["choices"])
    seen = description_of(head["env"])
    plan = RunPlan(config, _no_env, make_processor, seen=seen)
    if (plan.seed, plan.schema.hash()) != (head["seed"], head["schema"]):
        raise ConfigError(
            f"{order} is of a run with another seed, or other columns of experience, than "
            "these settings give; pass the agent and the config of that run"
        )
    learner, batch_size = plan.build_learner(), config.trainer.batch_size
    make_policy = PolicyOf(config.agent, seen.spec)
    source = ReplayedSource(learner, plan.build_buffer, log, batch_size=batch_size)
    return ReplayedTrainer(
        learner, source, make_policy=make_policy, recorder=recorder, callbacks=callbacks
    )


def _no_env() -> Any:  # noqa: ANN401  # for a plan, which builds none itself
    raise NotImplementedError("a replay steps no environments: their experience is in the record")


def _config_in(log: OrderLog) -> RunConfig:
    plain = {n: v for n, v in log.head["config"].items() if not n.startswith("env")}
    try:
        return from_plain(RunConfig, plain)
    except ConfigError as error:
        raise ConfigError(
            f"{log.parts[0].path} does not hold all settings of its run, which was built in "
            f"Python ({error}); pass agent= and config=, the same as to train_async"
        ) from error


def _warn_of_machine(then: dict[str, Any]) -> None:
    now = machine()
    changed = [
        f"{name} {then.get(name)} -> {now[name]}"
        for name in _MATTERS
        if then.get(name) != now[name]
    ]
    if changed:
        logger.warning(
            "the run was recorded elsewhere, and its bits may differ here: %s", "; ".join(changed)
        )
