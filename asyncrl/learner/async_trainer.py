"""Learns from what actors send: sample, learn, publish. Starts and stops actors.

actors ──► link ──► ReplayBufferProxy ──► ReplayBuffer      (a separate thread)
                                              │ sample
   ▲                                          ▼
   └───────── link.publish ◄── model ◄── agent.opt          (`BaseTrainer.learn`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Protocol, Unpack

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent
from asyncrl.core.declared import COMMON, Count, CountOrOff, PositiveOrOff, Within, check_declared
from asyncrl.core.errors import ConfigError, RankFailed
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, Experience
from asyncrl.core.ranks import LearnsInRanks, join
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import check_priorities, drawn_singly, in_batches
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import Columns
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.lockstep import Group, Lockstep, RanksConfig, Totals, check_alike
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.run_services import take_snapshot
from asyncrl.learner.staleness import Lag, Staleness
from asyncrl.learner.train_result import TrainResult
from asyncrl.learner.trainer import BaseTrainer, TrainerParts
from asyncrl.metrics.verdict import Setup
from asyncrl.supervision.actor_manager import ActorManager, ActorStatus

_WAIT_S = 0.05
_PUBLISH_SHARE = 0.02
"""Maximum share of the learner's time for models that are published between intervals. It is less
if many actors share few cores, since actors spend as much time on loading them."""

_DRAW_BYTES = 512 << 10
"""Maximum size of the batches sampled at once: half of a core's private cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainerConfig:
    """Settings of the learner."""

    batch_size: Annotated[Count, COMMON] = 128
    """Transitions per batch."""

    batches_per_draw: Count = 32
    """Maximum number of batches sampled from replay at once, as far as the rate limiter allows and
    a processor's cache holds them. Sampling a single batch takes a third of the time of an
    optimisation step of a small network. Prioritized batches are sampled one by one, since each one
    changes the priorities; so are trajectories, which are handed out whole."""

    sync_interval_opt_steps: Annotated[
        int, Within("[1, inf)", why="actors would never get a new model")
    ] = 50
    """Optimisation steps between two published models."""

    max_lag_s: PositiveOrOff = 0.0
    """Maximum age of the model behind arriving experience, in seconds since it was replaced. Beyond
    it a warning names the actor, and actors are granted fewer messages ahead. 0 disables."""

    max_lag_opt_steps: CountOrOff = 0
    """The same limit in optimisation steps behind the newest model. 0 disables."""

    def __post_init__(self) -> None:
        check_declared(self, "trainer")

    def draw_at_once(self, batch: Columns) -> int:
        """Return how many batches like this one are sampled at once, if the limiter allows it."""
        batch_bytes = sum(column.nbytes for column in batch.values())
        return max(1, min(self.batches_per_draw, _DRAW_BYTES // batch_bytes))


class Strategy(Protocol):
    """A training loop. A custom one replaces the default and uses the trainer's methods."""

    def run(self, trainer: AsyncTrainer) -> None:
        """Train until `trainer.should_stop`."""
        ...


class BackgroundPart(Protocol):
    """A part of the learner that runs in a separate thread, such as inference for actors."""

    def start(self) -> None:
        """Start the thread."""
        ...

    def stop(self) -> None:
        """Wait until the thread has ended; may be called again."""
        ...


class AsyncTrainer(BaseTrainer):
    """Optimises an agent on what actors send, and sends them its models.

    A run starts the receiving thread, publishes a first model and then starts the actors. However
    it ends, it leaves no process, thread or file behind. An error in any part is raised from it.
    """

    repeats = False

    def __init__(
        self,
        agent: Agent,
        link: LearnerLink,
        proxy: ReplayBufferProxy,
        config: AsyncTrainerConfig,
        *,
        manager: ActorManager,
        interrupter: Interrupter,
        inference: BackgroundPart | None = None,
        evaluation: EvaluationSite | None = None,
        strategy: Strategy | None = None,
        setup: Setup | None = None,
        group: Group | None = None,
        ranks: RanksConfig | None = None,
        **parts: Unpack[TrainerParts],
    ) -> None:
        """Make a trainer; with a `checkpoint`, one that resumes from there.

        With a `group` it is one of several learners, as `ranks` has it.
        """
        check_priorities(agent, proxy.buffer)
        self._ranks = ranks or RanksConfig()
        self._lockstep = self._joined(agent, group, interrupter)
        self.proxy = proxy
        self.config = config
        self._link, self._manager = link, manager
        self._inference = inference
        self._strategy = strategy
        self._staleness = Staleness(Lag(config.max_lag_s, config.max_lag_opt_steps))
        proxy.on_experience = self._staleness.on_experience
        proxy.on_stored = self._note_lag
        if strategy is None:
            proxy.on_room = self._publish_newest
        self._setup = setup
        self._declared, self._first_incarnation = manager.size, manager.next_incarnation
        self._publish_after = 0.0
        self._drawn: Iterator[Columns] = iter(())
        self._own_batch: Columns | None = None
        self._at_once = 1
        self._singly = drawn_singly(proxy.buffer)
        super().__init__(
            agent, interrupter=interrupter, evaluation=evaluation, setup=setup, parts=parts
        )
        self.services.warm_up_left = proxy.limiter.warm_up_left
        proxy.actors.note = self._callbacks.note
        proxy.actors.away = lambda: {s.actor_id for s in manager.fleet() if s.state == "left"}

    def _joined(
        self, agent: Agent, group: Group | None, interrupter: Interrupter
    ) -> Lockstep | None:
        if group is None:
            return None
        join(agent, group)
        return Lockstep(group, interrupter, self._own_totals, self._ranks.patience_s)

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors; with several learners at the last step of all."""
        if self._lockstep is None:
            return self.proxy.ledger.env_steps
        return (self._lockstep.totals if self._runs else self._lockstep.now()).env_steps

    @property
    def should_stop(self) -> bool:
        """As in each trainer; with several learners, whether all have agreed to stop."""
        together = self._lockstep if self._runs else None
        return super().should_stop if together is None else together.stopped

    @property
    def rank(self) -> int:
        """Number of this learner among several; 0 if it is the only one."""
        return 0 if self._lockstep is None else self._lockstep.group.rank

    @property
    def learners(self) -> int:
        """Number of learners of the run."""
        return 1 if self._lockstep is None else self._lockstep.group.world

    def publish(self) -> None:
        """Publish the agent's model to all actors; refuse a model that is not finite."""
        counts = self.services.counts
        info = take_snapshot(self.agent, opt_steps=counts.opt_steps, env_steps=counts.env_steps)
        self._link.publish(replace(info, n_actors=self._manager.size * self.learners), "act")
        self.proxy.order.published(info)
        self._staleness.on_publish(info.version)
        self._callbacks.note("published", counts.opt_steps)
        self.services.watch.lap("publish")

    @property
    def _publish_share(self) -> float:
        setup = self._setup
        if setup is None or setup.elsewhere:
            return _PUBLISH_SHARE
        return _PUBLISH_SHARE * min(1.0, setup.cores / self._manager.size)

    @property
    def actors(self) -> int:
        """Target number of actors."""
        return self._manager.size

    def set_actors(self, actors: int) -> None:
        """Let the run have this number of actors from now on. Any thread; does not wait.

        Actors that become too many, those with the highest numbers, send what they have before they
        exit. A resumed run has as many actors as before, unless its settings have another number
        than then.
        """
        if self._lockstep is not None:
            raise ConfigError(
                "several learners have a fixed number of actors; end the run, and resume it with "
                "another --actors"
            )
        self._manager.resize(actors)

    def fleet(self) -> list[ActorStatus]:
        """Return each actor's state, host and process, also of those that have left. Any thread."""
        return self._manager.fleet()

    def _change_env(self, change: EnvChange) -> None:
        """Publish the change; actors that start later begin with it."""
        self._link.change_env(change)

    def _publish_newest(self) -> None:
        """Publish for actors that are about to act, within a share of the learner's time."""
        self.services.watch.lap("sample")
        now = time.monotonic()
        opt_steps = self.services.counts.opt_steps
        if now < self._publish_after or not self._staleness.is_behind(opt_steps):
            return
        self.publish()
        took_s = time.monotonic() - now
        self._publish_after = now + took_s / self._publish_share

    def _note_lag(self, message: Experience) -> None:
        self._staleness.on_stored(message, self.services.counts.opt_steps)

    def result(self) -> TrainResult:
        """Return a summary of the run."""
        balance = self.proxy.ledger.balance()
        if self._lockstep is not None:
            balance = self._lockstep.balance()
        rows = self.proxy.actors.rows()
        result = super().result()
        return replace(
            result,
            setup=replace(result.setup, actors=self.actors) if self._setup else result.setup,
            lag_at_insert=self._staleness.mean_at_insert,
            lag_when_sampled=self._staleness.mean_when_sampled,
            lag_histogram=self._staleness.histogram,
            actor_shares=self.proxy.actors.shares(),
            ledger={**asdict(balance), "in_flight": balance.in_flight},
            actors={str(actor_id): row.totals() for actor_id, row in rows.items()},
            hosts=self.proxy.actors.hosts(),
        )

    @property
    def _priorities(self) -> ReplayBufferProxy:
        return self.proxy

    def _loop(self) -> None:
        if self._strategy:
            self._strategy.run(self)
        else:
            super()._loop()

    def _take(self, turns_left: int | None) -> Columns | None:
        if self._lockstep is None:
            return self._take_own(turns_left)
        if self._own_batch is None:
            self._own_batch = self._take_own(turns_left)
        goes = self._lockstep.turn(ready=self._own_batch is not None)
        self.services.watch.lap("ranks")
        if not goes:
            return None
        batch, self._own_batch = self._own_batch, None
        if batch is None:
            self._learn_without_batch()
        return batch

    def _learn_without_batch(self) -> None:
        """Take part in a step of all learners for which this one has no rows."""
        assert isinstance(self.agent, LearnsInRanks)  # noqa: S101  # `join` has seen to it
        self._prepare_step()
        self._count_step(self.agent.opt_without_batch())

    def _take_own(self, turns_left: int | None) -> Columns | None:
        """Return a batch as soon as the limiter allows one; None after a short wait without one."""
        batch = next(self._drawn, None)
        if batch is None:
            self._drawn = self._draw(min(self._at_once, turns_left or self._at_once))
            batch = next(self._drawn, None)
        if batch is not None:
            self.proxy.order.took()
        return batch

    def _draw(self, count: int) -> Iterator[Columns]:
        """Sample several batches if the limiter allows them now, else one or none.

        Actors act with the newest model while the learner waits.
        """
        size = self.config.batch_size
        while count > 1 and not self.proxy.wait_may_sample(count * size, 0.0):
            count //= 2
        allowed = count > 1 or self.proxy.wait_may_sample(size, 0.0)
        if not allowed:
            self.proxy.on_room()
            allowed = self.proxy.wait_may_sample(size, _WAIT_S)
        self.services.watch.lap("wait")
        if not allowed:
            return iter(())
        together = self.proxy.sample(count * size)
        self._staleness.on_sampled(together, self.opt_steps, count)
        self.services.watch.lap("sample")
        if count > 1:
            return iter(in_batches(together, size))
        if not self._singly:
            self._at_once = self.config.draw_at_once(together)
        return iter([together])

    def _own_score(self, timeout_s: float) -> Evaluation | None:
        """Of several learners, only the first evaluates."""
        return None if self.rank else super()._own_score(timeout_s)

    def _learns(self, env_steps: int) -> None:
        self.proxy.order.learns(env_steps)

    def _learned(self) -> None:
        """Publish the model if that is due."""
        opt_steps = self.services.counts.opt_steps
        if self._lockstep is not None and opt_steps % self._ranks.check_interval_opt_steps == 0:
            self._check_equal()
        if opt_steps % self.config.sync_interval_opt_steps == 0:
            self.publish()

    def _check_equal(self) -> None:
        """Raise if parameters differ between learners; all of them call it at the same step."""
        assert isinstance(self.agent, LearnsInRanks)  # noqa: S101  # `join` has seen to it
        if different := self.agent.differing_ranks():
            raise RankFailed(
                f"after {self.opt_steps} optimisation steps, parameters of rank "
                f"{', '.join(map(str, different))} differ from those of rank 0: the learners no "
                "longer train one model. Use the same kind of processor, torch and asyncrl for all"
            )

    def _own_totals(self) -> Totals:
        proxy = self.proxy
        return Totals(
            **asdict(proxy.ledger.balance()),
            env_steps=proxy.ledger.env_steps,
            episodes=proxy.actors.episodes,
            # Other ranks add what they have used, so that resuming multiplies nothing.
            incarnation=self._manager.next_incarnation
            - (self._first_incarnation if self.rank else 0),
            replay_size=len(proxy.buffer),
            inserted=proxy.limiter.inserted // proxy.limiter.stride,
            sampled=proxy.limiter.sampled,
        )

    def _metrics(self) -> Record:
        record = {**self.proxy.record(), **self.proxy.actors.take(), **self._staleness.take()}
        of_all = {} if self._lockstep is None else self._lockstep.record()
        return {"actors": float(self.actors), **record, **of_all}

    def _state(self, *, save_replay: bool) -> RunState:
        groups, numbers = self.proxy.state(save_replay=save_replay)
        asked = self._manager.asked
        more = {"fleet": {"actors": asked, "declared": self._declared}} if asked else {}
        numbers = {**numbers, "incarnation": self._manager.next_incarnation, **more}
        return RunState(
            groups, numbers if self._lockstep is None else self._lockstep.saved(numbers)
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore the ledger and, if it was saved, the replay.

        Actors start new episodes, with seeds that no earlier incarnation has used. There are as
        many as before, unless the settings now declare another number.
        """
        sampled = checkpoint.count("opt_steps") * self.config.batch_size
        self.proxy.restore(checkpoint, sampled=sampled)
        if "fleet" not in checkpoint.meta["run"] or self._lockstep is not None:
            return
        if checkpoint.count("run.fleet.declared") == self._declared:
            actors = checkpoint.count("run.fleet.actors")
            try:
                self._manager.resize(actors)
            except ConfigError as error:  # more than hosts are asked for
                raise ConfigError(
                    f"{error}. It had grown to that many when it was saved: pass --actors "
                    f"{actors}, in Python actors={actors}"
                ) from error

    def _begin(self) -> None:
        """Start the receiving thread, publish the first model, then start actors."""
        self.proxy.order.begin()
        if self._lockstep is not None:
            self.services.saves_agent = self.rank == 0
            self.services.take_save_request = self._lockstep.take_save_request
            check_alike(self._lockstep.group, {"the number of optimisation steps": self.opt_steps})
            self._check_equal()
        self.proxy.start()
        self.publish()
        if self._inference is not None:
            self._inference.start()
        self._manager.start()

    def _end_learning(self) -> None:
        self.proxy.actors.end_learning()

    def _ends(self) -> Iterator[Callable[[], object]]:
        """End in the order that loses nothing: actors finish, their experience arrives, checkpoint.

        After a failure or a signal the checkpoint comes first, since there may be no time for more,
        and other learners are left at once.
        """
        save = [self._save_last] if self.services.counts.opt_steps else []
        urgent = self.interrupter.urgent
        if self._lockstep is not None and urgent:
            yield partial(self._lockstep.group.leave, self.interrupter.error)
        yield self._manager.expect_ends
        yield self.proxy.drain
        yield self._link.stop_actors
        yield from save if urgent else []
        yield self._stop_actors
        yield from self._stop_inference()
        yield self.proxy.close
        if self._lockstep is not None:
            yield partial(self._lockstep.settle, self.services.final_evaluation_s)
        yield from [] if urgent else save
        yield self.proxy.order.close
        yield lambda: None if self.proxy.hangs else self._link.close()

    def _release(self) -> Iterator[Callable[[], object]]:
        if self._lockstep is not None:
            yield self._lockstep.group.leave
        yield self._manager.stop
        yield from self._stop_inference()
        yield self._link.close

    def _stop_inference(self) -> Iterator[Callable[[], object]]:
        if self._inference is not None:
            yield self._inference.stop

    def _stop_actors(self) -> None:
        """Wait for actors to exit, unless none hears that it must."""
        self._manager.stop(timeout_s=None if self.proxy.receives else 0.0)


_ROUND_WAIT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectThenTrain:
    """A `Strategy` that alternates between collecting experience and learning from the replay.

    Each round learns from the whole replay. With `TrajectoryQueueConfig` that is what was collected
    since the last round, and what that round left.
    """

    env_steps: Count
    """Environment steps of all actors between two rounds of learning. Fewer only if the rate
    limiter blocks the actors, since it then waits for samples."""

    opt_steps: Count
    """Optimisation steps per round. After it, all actors get the model."""

    def __post_init__(self) -> None:
        check_declared(self, "strategy")

    def run(self, trainer: AsyncTrainer) -> None:
        """Alternate until the run ends."""
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
            trainer.services.watch.lap("wait")
            trainer.run_services()
        trainer.interrupter.raise_if_failed()
        trainer.services.watch.lap("wait")

    def train(self, trainer: AsyncTrainer) -> None:
        """Do one round's optimisation steps, and publish the new model."""
        done = 0
        while done < self.opt_steps and not trainer.should_stop:
            # Batches sampled ahead would lack the next round's experience.
            done += trainer.run_step(turns_left=self.opt_steps - done)
        if done:
            trainer.publish()
