"""The synchronous trainer: one process, one thread, the same bits for the same seed.

Uses the same agent, environments, processor, outbox and replay buffer as the asynchronous one;
what differs is the link, which pushes straight into the buffer, and this loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

from asyncrl.actor import Actor
from asyncrl.actor_table import ActorTable
from asyncrl.agent import Agent, PolicyWrapper
from asyncrl.bookkeeper import Bookkeeper, BookkeepingConfig
from asyncrl.checkpoint import Checkpointer
from asyncrl.env import BatchEnv
from asyncrl.errors import ConfigError
from asyncrl.evaluation import InlineEvaluation
from asyncrl.evaluator import Evaluator
from asyncrl.interrupter import Interrupter
from asyncrl.messages import (
    ActorReport,
    EvaluationReport,
    Experience,
    Hello,
    ModelInfo,
    Peer,
)
from asyncrl.outbox import Outbox
from asyncrl.recorder import Record, Recorder
from asyncrl.replay_buffer import ReplayBuffer, check_priorities, pass_priorities_on
from asyncrl.seeding import Role, derive_seed
from asyncrl.segment import SegmentConfig, SegmentSchema
from asyncrl.step_processor import StepProcessor
from asyncrl.stop_conditions import StopCondition
from asyncrl.train_result import TrainResult
from asyncrl.transport import Topic
from asyncrl.types import ActorId, ModelVersion

__all__ = ["Trainer", "TrainerConfig", "train_offline"]


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
    ) -> None:
        _check(agent, buffer, config)
        self.agent = agent
        self.buffer = buffer
        self.config = config
        self.interrupter = interrupter or Interrupter()
        self._env = env
        self._seed = seed
        self._run_config = run_config or {}
        self._agent_record: Mapping[str, SupportsFloat] = {}
        self._opt_rounds = 0
        peer = Peer(actor_id=ActorId(0), incarnation=0)
        # By count only: a message sent because time has passed would depend on the clock.
        segment = replace(config.segment, flush_interval_s=0.0)
        self._link = _BufferLink(buffer)
        self._table = ActorTable()
        self._actor = Actor(
            peer,
            env,
            _OwnModel(agent),
            processor,
            Outbox(peer, schema, segment, env.n_envs),
            self._link,
            progress=_NoProgress(),
        )
        self.books = Bookkeeper(
            agent,
            config.books,
            self.interrupter,
            evaluation=InlineEvaluation(evaluator, agent) if evaluator else None,
            recorder=recorder,
            checkpointer=checkpointer,
            stop=stop,
        )

    def train(self) -> TrainResult:
        """Train until a stop condition holds."""

        def loop() -> None:
            self.books.start(self._run_config, [self._record])
            self._actor.start(derive_seed(self._seed, Role.ENVIRONMENT, 0))
            while not self.interrupter.is_set:
                self.run_step()

        return _run(loop, self.books, self.interrupter, self.newest_record)

    def run_step(self) -> None:
        """Take one step in all environments, then optimise as often as is due."""
        self._actor.run_step()
        self.books.watch.lap("act")
        for _ in range(self._opts_due()):
            if self.interrupter.is_set:
                return
            self._learn()
            self.books.turn(self.newest_record)
        # Counted once what they owe is done, so that a limit on them ends on a whole round.
        self.books.counts.env_steps = self._actor.env_steps
        self.books.turn(self.newest_record)
        self.books.watch.lap("other")

    def newest_record(self) -> dict[str, SupportsFloat]:
        """Return the agent's numbers of the newest optimisation step."""
        return {f"agent/{name}": value for name, value in self._agent_record.items()}

    def _opts_due(self) -> int:
        """Return how many optimisation steps this turn owes; none before the warm-up is over."""
        done = self._actor.env_steps - self.config.warmup_env_steps
        rounds = max(0, done) // self.config.opt_interval_env_steps
        if rounds > self._opt_rounds and self.config.cut_before_opt:
            self._actor.finish_streams()
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
        self._link.version = ModelVersion(self.books.counts.opt_steps)
        self.books.watch.lap("opt")

    def _record(self) -> Record:
        self._table.on_report(self._actor.report())
        stored = float(self._link.stored)
        return {
            "samples_total": stored,
            "replay/size": float(len(self.buffer)),
            **self._table.take(),
        }


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
) -> TrainResult:
    """Optimise on a filled buffer until a stop condition holds; no environment is needed."""
    if not len(buffer):
        raise ConfigError("train_offline needs a filled buffer; this one holds no transition")
    check_priorities(agent, buffer)
    interrupter = interrupter or Interrupter()
    keeper = Bookkeeper(
        agent,
        books or BookkeepingConfig(),
        interrupter,
        evaluation=InlineEvaluation(evaluator, agent) if evaluator else None,
        recorder=recorder,
        checkpointer=checkpointer,
        stop=stop,
    )
    newest: dict[str, SupportsFloat] = {}

    def newest_record() -> dict[str, SupportsFloat]:
        return newest

    def loop() -> None:
        nonlocal newest
        keeper.start({}, [lambda: {"replay/size": float(len(buffer))}])
        while not interrupter.is_set:
            batch = buffer.sample(batch_size)
            keeper.watch.lap("sample")
            newest = {f"agent/{name}": value for name, value in agent.opt(batch).items()}
            pass_priorities_on(agent, batch, buffer)
            keeper.counts.opt_steps += 1
            keeper.watch.lap("opt")
            keeper.turn(newest_record)
            keeper.watch.lap("other")

    return _run(loop, keeper, interrupter, newest_record)


def _run(
    loop: Callable[[], None],
    books: Bookkeeper,
    interrupter: Interrupter,
    newest_record: Callable[[], Mapping[str, SupportsFloat]],
) -> TrainResult:
    """Run a loop, close its books whatever became of it, and raise the first error."""
    try:
        loop()
        books.finish()
        books.save()
    except BaseException as error:
        interrupter.fail(error)
    books.close(newest_record)
    interrupter.raise_if_failed()
    return books.result()


def _check(agent: Agent, buffer: ReplayBuffer, config: TrainerConfig) -> None:
    check_priorities(agent, buffer)
    for name, value in (("batch_size", config.batch_size), ("warm-up", config.warmup_env_steps)):
        if value > buffer.capacity:
            raise ConfigError(
                f"{name} of {value} does not fit a replay buffer of {buffer.capacity} transitions; "
                "make the buffer larger"
            )


class _OwnModel(PolicyWrapper):
    """The learning agent as the actor's policy: its model is always the newest one."""

    def sync_model(self, info: ModelInfo) -> None:
        """Do nothing: the parameters are the agent's own."""


class _BufferLink:
    """An actor's link that ends in the replay buffer of the same process."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self.stored = 0
        self.version = ModelVersion(0)

    def hello(self, message: Hello) -> None:
        """Nobody needs to agree."""

    def send(self, message: Experience | ActorReport | EvaluationReport, timeout_s: float) -> bool:
        if isinstance(message, Experience):
            self.stored += self._buffer.push(message.columns, message.rows)
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        return ModelInfo(version=self.version, params={}) if self.version > newer_than else None

    def stopping(self) -> bool:
        return False

    def drain(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""


class _NoProgress:
    def turn(self, produced: int) -> None:
        """Nobody watches."""

    def waiting(self, waiting: bool) -> None:
        """Nobody watches."""
