"""The learner's turn: sample, learn, publish, keep books. Knows no sockets and no processes.

actors ──► link ──► ReplayBufferProxy ──► ReplayBuffer      (a thread of its own)
                                              │ sample
   ▲                                          ▼
   └───────── link.publish ◄── model ◄── agent.opt          (`AsyncTrainer.run_step`)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol, SupportsFloat

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import going_on_from
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, CountsEnvSteps, optimised
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Recorder
from asyncrl.core.replay_buffer import (
    check_priorities,
    drawn_singly,
    in_batches,
    pass_priorities_on,
)
from asyncrl.core.settings import check_declared
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import Columns
from asyncrl.learner.bookkeeper import Bookkeeper, BookkeepingConfig
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.staleness import Lag, Staleness
from asyncrl.learner.stop_conditions import StopCondition
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.verdict import Setup
from asyncrl.supervision.actor_manager import ActorManager

logger = logging.getLogger(__name__)

_WAIT_S = 0.05

_DRAW_BYTES = 512 << 10
"""Drawn at once: half of what a core's own cache holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainerConfig:
    """The learner's own settings."""

    batch_size: int = 128
    """Transitions in a batch."""

    batches_per_draw: int = 32
    """Batches drawn from replay at once at the most: as many of them as the limiter allows and as
    fit into a processor's cache. By itself, a draw takes a third as long as a step of a small
    network. Those with priorities are drawn one by one, as each batch changes who comes next, and
    so are trajectories, which are handed out whole."""

    sync_interval_opt_steps: int = 50
    """Optimisation steps between two published models."""

    max_lag_s: float = 0.0
    """Warn of actors whose experience arrives of models replaced longer ago than this; 0 is off."""

    max_lag_opt_steps: int = 0
    """Warn, too, if these models are so many optimisation steps behind the newest; 0 is off."""

    books: BookkeepingConfig = field(default_factory=BookkeepingConfig)
    """When to evaluate, record and save."""

    def __post_init__(self) -> None:
        check_declared(self, "trainer")
        for name in ("batch_size", "batches_per_draw"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name} must be at least 1, got {getattr(self, name)}")
        if self.sync_interval_opt_steps < 1:
            raise ConfigError(
                "trainer.sync_interval_opt_steps must be at least 1 (actors would never get a new "
                f"model), got {self.sync_interval_opt_steps}"
            )
        for name in ("max_lag_s", "max_lag_opt_steps"):
            if (most := getattr(self, name)) < 0:
                raise ConfigError(f"trainer.{name} must be 0 (off) or more, got {most}")

    def draw_at_once(self, batch: Columns) -> int:
        """Return how many batches like this one are drawn at once, where the limiter allows it."""
        batch_bytes = sum(column.nbytes for column in batch.values())
        return max(1, min(self.batches_per_draw, _DRAW_BYTES // batch_bytes))


class Strategy(Protocol):
    """A training loop. Anything may stand in for ours, and use the trainer's parts."""

    def run(self, trainer: AsyncTrainer) -> None:
        """Train until `trainer.should_stop`."""
        ...


class TurnByTurn:
    """The loop that is used unless another one is given."""

    def run(self, trainer: AsyncTrainer) -> None:
        """Take one turn after another."""
        while not trainer.should_stop:
            trainer.run_step()


class AsyncTrainer:
    """Optimises an agent on what actors send, and sends them its models.

    `train` owns the whole run: it starts the proxy, publishes a first model, starts the actors,
    and leaves nothing behind, however it ends. An error anywhere is raised from it.
    """

    def __init__(
        self,
        agent: Agent,
        link: LearnerLink,
        proxy: ReplayBufferProxy,
        config: AsyncTrainerConfig,
        *,
        manager: ActorManager,
        interrupter: Interrupter,
        evaluation: EvaluationSite | None = None,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        stop: StopCondition | None = None,
        strategy: Strategy | None = None,
        setup: Setup | None = None,
        run_config: Mapping[str, object] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Make a trainer; with a `checkpoint`, one that goes on from there."""
        check_priorities(agent, proxy.buffer)
        self.agent = agent
        self.proxy = proxy
        self.config = config
        self.interrupter = interrupter
        self._link, self._manager = link, manager
        self._close_evaluation = evaluation.close if evaluation else lambda: None
        self._has_trained = False
        self._scheduled = agent if isinstance(agent, CountsEnvSteps) else None
        self._strategy = strategy or TurnByTurn()
        self._run_config = run_config or {}
        self._staleness = Staleness(Lag(config.max_lag_s, config.max_lag_opt_steps))
        proxy.on_experience = self._staleness.on_experience
        self._agent_record: Mapping[str, SupportsFloat] = {}
        self._batch: Columns = {}
        self._drawn: Iterator[Columns] = iter(())
        self._at_once = 1
        self._singly = drawn_singly(proxy.buffer)
        self.books = Bookkeeper(
            agent,
            config.books,
            interrupter,
            evaluation=evaluation,
            recorder=recorder,
            checkpointer=checkpointer,
            stop=stop,
            setup=setup,
            state=self._state,
        )
        if checkpoint:
            self._restore(checkpoint)

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end: a stop condition, a signal, the user, or a failure."""
        return self.interrupter.is_set

    def train(self) -> TrainResult:
        """Train until a stop condition holds; raise the first error of any part."""
        if self._has_trained:
            raise ConfigError("this trainer has trained already; build another one for another run")
        if self.books.has_ended(self.proxy.record()):
            self.close()
            return self.result()
        self._has_trained = True
        try:
            self._start()
            self._strategy.run(self)
            self.proxy.actors.end_learning()
            self.books.finish()
            self.interrupter.stop("the loop ended")
        except BaseException as error:
            self.interrupter.fail(error)
        finally:
            self._close()
        self.interrupter.raise_if_failed()
        return self.result()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint.

        Counters, the ledger, schedules and, if it was saved, the replay go on; actors begin new
        episodes, which no life of an actor has played before.
        """
        with going_on_from(checkpoint):
            self.books.restore(checkpoint)
            self.proxy.restore(checkpoint)

    def close(self) -> None:
        """Release what a trainer holds that is not to train; `train` itself leaves nothing."""
        if not self._has_trained:
            self._has_trained = True
            self.interrupter.take_steps(
                self._manager.stop, self._link.close, self._close_evaluation, self.books.close_saver
            )
            self.interrupter.raise_if_failed()

    def run_step(self, turns_left: int | None = None) -> bool:
        """Take one turn: sample, learn, keep books.

        Returns whether it learned; if not, it has waited a little for experience.
        """
        batch = self.sample(turns_left)
        if batch is not None:
            self.learn(batch)
        self.keep_books()
        return batch is not None

    def sample(self, turns_left: int | None = None) -> Columns | None:
        """Return a batch as soon as the limiter allows one; None after a short wait in vain.

        No more are drawn at once than there are `turns_left`, this one included, if that is given.
        Raises the error of whichever part of the run has failed, so that no loop goes on alone.
        """
        self.interrupter.raise_if_failed()
        batch = next(self._drawn, None)
        if batch is None:
            self._drawn = self._draw(min(self._at_once, turns_left or self._at_once))
            batch = next(self._drawn, None)
        return batch

    def learn(self, batch: Columns) -> None:
        """Do one optimisation step, count it, and publish the model when that is due."""
        self._batch = batch
        if self._scheduled is not None:
            known = self._scheduled.env_steps
            self._scheduled.env_steps = max(known, self.proxy.ledger.env_steps)
        self._agent_record = optimised(self.agent, batch)
        pass_priorities_on(self.agent, batch, self.proxy)
        self.books.counts.opt_steps += 1
        self.books.watch.lap("opt")
        if self.books.counts.opt_steps % self.config.sync_interval_opt_steps == 0:
            self.publish()

    def keep_books(self) -> None:
        """Evaluate, record, save and stop, whatever of it is due."""
        self._count_env_steps()
        self.books.turn(self.newest_record)
        self.books.watch.lap("other")

    def publish(self) -> None:
        """Hand the agent's model to all actors; refuse one that is not finite."""
        info = self.books.snapshot()
        self._link.publish(info, "act")
        self._staleness.on_publish(info.version)
        self.books.watch.lap("publish")

    def newest_record(self) -> dict[str, SupportsFloat]:
        """Return the agent's numbers of the newest optimisation step, and its batch's age."""
        record: dict[str, SupportsFloat] = {
            f"agent/{name}": value for name, value in self._agent_record.items()
        }
        return record | dict(self._staleness.of(self._batch, self.books.counts.opt_steps))

    def result(self) -> TrainResult:
        """Sum the run up."""
        balance = self.proxy.ledger.balance()
        rows = self.proxy.actors.rows()
        return replace(
            self.books.result(),
            actor_shares=self.proxy.actors.shares(),
            ledger={**asdict(balance), "in_flight": balance.in_flight},
            actors={str(actor_id): row.counts() for actor_id, row in rows.items()},
        )

    def _draw(self, count: int) -> Iterator[Columns]:
        """Draw several batches if the limiter allows them now, else one; none if it allows none."""
        size = self.config.batch_size
        while count > 1 and not self.proxy.wait_may_sample(count * size, 0.0):
            count //= 2
        allowed = count > 1 or self.proxy.wait_may_sample(size, _WAIT_S)
        self.books.watch.lap("wait")
        if not allowed:
            return iter(())
        together = self.proxy.sample(count * size)
        self.books.watch.lap("sample")
        if count > 1:
            return iter(in_batches(together, size))
        if not self._singly:
            self._at_once = self.config.draw_at_once(together)
        return iter([together])

    def _count_env_steps(self) -> None:
        self.books.counts.env_steps = self.proxy.ledger.env_steps

    def _state(self) -> RunState:
        groups, numbers = self.proxy.state(save_replay=self.config.books.save_replay)
        return RunState(groups, {**numbers, "incarnation": self._manager.next_incarnation})

    def _start(self) -> None:
        """Sockets are open; then the receiving thread, the first model, and only then actors."""
        self.books.start(self._run_config, [self.proxy.record, self.proxy.actors.take])
        self.proxy.start()
        self.publish()
        self._manager.start()

    def _close(self) -> None:
        """End in the order that loses nothing: actors finish, tails arrive, checkpoint.

        After a failure or a signal the checkpoint comes first, since there may be no time for more.
        Each step is taken whatever became of the one before; the first error is kept.
        """
        urgent = self.interrupter.urgent
        self.interrupter.take_steps(
            self._manager.expect_ends,
            self.proxy.drain,
            self._link.stop_actors,
            *([self._save_last] if urgent else []),
            self._stop_actors,
            self.proxy.close,
            *([] if urgent else [self._save_last]),
            lambda: None if self.proxy.hangs else self._link.close(),
            self._close_evaluation,
            self._close_books,
            self._close_saver,
        )

    def _stop_actors(self) -> None:
        """Wait for actors to end, unless somebody has interrupted the end as well."""
        self._manager.stop(timeout_s=0.0 if self.interrupter.hurry else None)

    def _close_saver(self) -> None:
        """Wait for the last checkpoint to be on disk; half of one is never seen by anybody."""
        self.books.close_saver(wait=not self.interrupter.hurry)

    def _save_last(self) -> None:
        """Save what was learned, also when a part failed; never a model that is not finite."""
        self.books.watch.lap("other")  # what came before is the end's, not the checkpoint's
        self._count_env_steps()
        if not isinstance(self.interrupter.error, NonFiniteModel) and self.books.counts.opt_steps:
            self.books.save()

    def _close_books(self) -> None:
        self._count_env_steps()
        self.books.close(self.newest_record)


_ROUND_WAIT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectThenTrain:
    """A `Strategy` that learns in rounds, each from experience that is new since the last one."""

    env_steps: int
    """Environment steps of all actors, from the end of one round of learning to the next; fewer
    only where the limiter keeps actors from going on, since that waits for samples."""

    opt_steps: int
    """Optimisation steps of a round; after it, all actors get the model."""

    def __post_init__(self) -> None:
        check_declared(self, "strategy")
        for name in ("env_steps", "opt_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"strategy.{name} must be at least 1, got {getattr(self, name)}")

    def run(self, trainer: AsyncTrainer) -> None:
        """Alternate until the run is to end."""
        while not trainer.should_stop:
            self.collect(trainer)
            self.train(trainer)

    def collect(self, trainer: AsyncTrainer) -> None:
        """Wait until there is as much new experience as a round needs."""
        proxy = trainer.proxy
        enough = proxy.ledger.env_steps + self.env_steps
        while not proxy.blocked and proxy.ledger.env_steps < enough:
            if trainer.interrupter.wait(_ROUND_WAIT_S):
                break
            trainer.books.watch.lap("wait")
            trainer.keep_books()
        trainer.interrupter.raise_if_failed()
        trainer.books.watch.lap("wait")

    def train(self, trainer: AsyncTrainer) -> None:
        """Learn as often as a round says, and hand out the model that comes of it."""
        done = 0
        while done < self.opt_steps and not trainer.should_stop:
            # What is drawn ahead would be older than the next round's experience.
            done += trainer.run_step(turns_left=self.opt_steps - done)
        if done:
            trainer.publish()
