"""The synchronous trainer: one process, one thread, the same bits for the same seed.

Uses the same agent, environments, processor, outbox and replay buffer as the asynchronous one;
what differs is the link, which pushes straight into the buffer, and this loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsFloat

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import going_on_from
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent
from asyncrl.core.env import BatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluator
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Record, Recorder
from asyncrl.core.replay_buffer import (
    ReplayBuffer,
    check_priorities,
    pass_priorities_on,
    replay_groups,
    restore_replay,
)
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.settings import check_declared
from asyncrl.core.types import ModelVersion
from asyncrl.inline_actor import InlineActor
from asyncrl.learner.bookkeeper import Bookkeeper, BookkeepingConfig, _run
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.stop_conditions import StopCondition
from asyncrl.learner.train_result import TrainResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How environment steps and optimisation steps alternate."""

    batch_size: int = 128
    """Transitions in a batch."""

    opt_interval_env_steps: int = 1
    """Environment steps between two rounds of optimisation."""

    opt_steps_per_interval: int = 1
    """Optimisation steps in a round."""

    warmup_env_steps: int = 1000
    """Environment steps before the first round; until then nothing is optimised or evaluated."""

    cut_before_opt: bool = False
    """Cut all segments before each round, so that it learns from everything up to now. On-policy
    agents need that; `segment.length` is then to be no less than what a round collects from one
    environment, with a row more for each episode that ends in it."""

    segment: SegmentConfig = field(default_factory=lambda: SegmentConfig(length=1))
    """Segments of one row put each step into replay as soon as its successors are known."""

    books: BookkeepingConfig = field(
        default_factory=lambda: BookkeepingConfig(
            record_interval_s=0.0, record_interval_opt_steps=500
        )
    )
    """When to evaluate, record and save; by steps, so that two runs record the same."""

    def __post_init__(self) -> None:
        check_declared(self, "trainer")
        for name in ("batch_size", "opt_interval_env_steps", "opt_steps_per_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name} must be at least 1, got {getattr(self, name)}")
        if self.warmup_env_steps < 0:
            raise ConfigError(
                f"trainer.warmup_env_steps must be 0 or more, got {self.warmup_env_steps}"
            )


class Trainer:
    """Steps, stores and optimises in turn, in the caller's own thread."""

    def __init__(
        self,
        agent: Agent,
        env: BatchEnv,
        buffer: ReplayBuffer,
        config: TrainerConfig,
        *,
        schema: SegmentSchema,
        processor: StepProcessor,
        seed: int,
        evaluator: Evaluator | None = None,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        stop: StopCondition | None = None,
        interrupter: Interrupter | None = None,
        run_config: Mapping[str, object] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Make a trainer; with a `checkpoint`, one that goes on from there."""
        _check(agent, buffer, config)
        self.agent = agent
        self.buffer = buffer
        self.config = config
        self.interrupter = interrupter or Interrupter()
        self._run_config = run_config or {}
        self._agent_record: Mapping[str, SupportsFloat] = {}
        self._opt_rounds = 0
        self._opts_owed = 0
        self._actor = InlineActor(
            agent,
            env,
            buffer,
            schema=schema,
            segment=config.segment,
            processor=processor,
            seed=seed,
        )
        self.books = Bookkeeper(
            agent,
            config.books,
            self.interrupter,
            evaluation=InlineEvaluation(evaluator, agent) if evaluator else None,
            recorder=recorder,
            checkpointer=checkpointer,
            stop=stop,
            state=self._state,
        )
        if checkpoint:
            self._restore(checkpoint)

    def train(self) -> TrainResult:
        """Train until a stop condition holds."""

        def loop() -> None:
            self.books.start(self._run_config, [self._record])
            self._actor.begin_life()
            while not self.interrupter.is_set:
                self.run_step()

        return _run(loop, self.books, self.interrupter, self.newest_record, self._record())

    def run_step(self) -> None:
        """Take one step in all environments, then optimise as often as is due.

        After a checkpoint in the middle of a round, a resumed run does the rest of the round first.
        """
        if not self._opts_owed:
            self._actor.run_step()
            self._opts_owed = self._opts_due()
        self.books.watch.lap("act")
        while self._opts_owed:
            if self.interrupter.is_set:
                return
            self._opts_owed -= 1
            self._learn()
            self.books.turn(self.newest_record)
        # Counted once what they owe is done, so that a limit on them ends on a whole round.
        self.books.counts.env_steps = self._actor.env_steps
        self.books.turn(self.newest_record)
        self.books.watch.lap("other")

    def newest_record(self) -> dict[str, SupportsFloat]:
        """Return the agent's numbers of the newest optimisation step."""
        return {f"agent/{name}": value for name, value in self._agent_record.items()}

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint.

        What follows is, bit for bit, what followed in the run that saved it, if it saved its
        replay too.
        """
        with going_on_from(checkpoint):
            self._opt_rounds = checkpoint.count("run.opt_rounds")
            self._opts_owed = checkpoint.count("run.opts_owed")
            lives = ("incarnation", "env_steps", "stored", "episodes")
            self._actor.restore({name: checkpoint.count(f"run.actor.{name}") for name in lives})
            self.books.restore(checkpoint)
            restore_replay(self.buffer, checkpoint.groups)
        self._actor.model_version = ModelVersion(self.books.counts.opt_steps)

    def _state(self) -> RunState:
        """End the actor's life and begin another: nobody can save an environment's insides.

        So a checkpoint ends the episodes that are being played, and what follows depends on nothing
        but the checkpoint.
        """
        actor = self._actor.end_life()
        numbers = {"opt_rounds": self._opt_rounds, "opts_owed": self._opts_owed, "actor": actor}
        groups = replay_groups(self.buffer, save=self.config.books.save_replay)
        self._actor.begin_life()
        return RunState(groups, numbers)

    def _opts_due(self) -> int:
        """Return how many optimisation steps this turn owes; none before the warm-up is over."""
        done = self._actor.env_steps - self.config.warmup_env_steps
        rounds = max(0, done) // self.config.opt_interval_env_steps
        if rounds > self._opt_rounds and self.config.cut_before_opt:
            self._actor.cut()
        if len(self.buffer) == 0:
            return 0
        due, self._opt_rounds = rounds - self._opt_rounds, rounds
        return due * self.config.opt_steps_per_interval

    def _learn(self) -> None:
        batch = self.buffer.sample(self.config.batch_size)
        self.books.watch.lap("sample")
        self._agent_record = self.agent.opt(batch)
        pass_priorities_on(self.agent, batch, self.buffer)
        self.books.counts.opt_steps += 1
        self._actor.model_version = ModelVersion(self.books.counts.opt_steps)
        self.books.watch.lap("opt")

    def _record(self) -> Record:
        return {"replay/size": float(len(self.buffer)), **self._actor.record()}


def train_offline(
    agent: Agent,
    buffer: ReplayBuffer,
    *,
    batch_size: int = 128,
    books: BookkeepingConfig | None = None,
    evaluator: Evaluator | None = None,
    recorder: Recorder | None = None,
    checkpointer: Checkpointer | None = None,
    stop: StopCondition | None = None,
    interrupter: Interrupter | None = None,
    run_config: Mapping[str, object] | None = None,
    checkpoint: Checkpoint | None = None,
) -> TrainResult:
    """Optimise on a filled buffer, from a `checkpoint` on if there is one, without environments."""
    if not len(buffer):
        raise ConfigError("train_offline needs a filled buffer; this one holds no transition")
    check_priorities(agent, buffer)
    interrupter, books = interrupter or Interrupter(), books or BookkeepingConfig()
    save_replay = books.save_replay
    keeper = Bookkeeper(
        agent,
        books,
        interrupter,
        evaluation=InlineEvaluation(evaluator, agent) if evaluator else None,
        recorder=recorder,
        checkpointer=checkpointer,
        stop=stop,
        state=lambda: RunState(replay_groups(buffer, save=save_replay), {}),
    )
    if checkpoint:
        with going_on_from(checkpoint):
            keeper.restore(checkpoint)
            restore_replay(buffer, checkpoint.groups)
    newest: dict[str, SupportsFloat] = {}

    def loop() -> None:
        keeper.start(run_config or {}, [lambda: {"replay/size": float(len(buffer))}])
        while not interrupter.is_set:
            batch = buffer.sample(batch_size)
            keeper.watch.lap("sample")
            newest.clear()
            newest.update((f"agent/{name}", value) for name, value in agent.opt(batch).items())
            pass_priorities_on(agent, batch, buffer)
            keeper.counts.opt_steps += 1
            keeper.watch.lap("opt")
            keeper.turn(lambda: newest)
            keeper.watch.lap("other")

    return _run(loop, keeper, interrupter, lambda: newest, {})


def _check(agent: Agent, buffer: ReplayBuffer, config: TrainerConfig) -> None:
    check_priorities(agent, buffer)
    for name, value in (("batch_size", config.batch_size), ("warm-up", config.warmup_env_steps)):
        if value > buffer.capacity:
            raise ConfigError(
                f"{name} of {value} does not fit a replay buffer of {buffer.capacity} transitions; "
                "make the buffer larger"
            )
