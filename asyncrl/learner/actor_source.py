"""Experience of actors: sample it from the replay, publish models, start and stop the actors.

actors ──► link ──► ReplayBufferProxy ──► ReplayBuffer      (a separate thread)
                                              │ sample
   ▲                                          ▼
   └───────── link.publish ◄── model ◄── agent.opt          (`Trainer.learn`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import EnvChange
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import drawn_singly, in_batches
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import ActorId, Columns
from asyncrl.fleet.actor_manager import ActorManager
from asyncrl.fleet.actor_table import hosts_record
from asyncrl.learner.config import AsyncTrainerConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.source import Learning, Source
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.verdict import Setup

_WAIT_S = 0.05
_ROUND_WAIT_S = 0.01
_PUBLISH_SHARE = 0.02
"""Maximum share of the learner's time for models that are published between intervals. It is less
if many actors share few cores, since actors spend as much time on loading them."""


Hosts = Mapping[str, Mapping[str, float]]


class BackgroundPart(Protocol):
    """A part of the learner that runs in a separate thread, such as inference for actors."""

    def start(self) -> None:
        """Start the thread."""
        ...

    def stop(self) -> None:
        """Wait until the thread has ended; may be called again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """The actors of a run, as its learner meets them."""

    link: LearnerLink
    proxy: ReplayBufferProxy
    manager: ActorManager
    """Starts and watches the actors."""

    inference: BackgroundPart | None = None
    """Computes what actors do, in a thread here."""

    setup: Setup | None = None
    """What the verdict must know of the run."""

    publishes: bool = True
    """Whether actors that are about to continue get the newest model, between those of the
    interval, too."""

    beside: int = 0
    """Number of actors that send their experience to other learners."""

    hosts: Callable[[], Hosts] = dict
    """Returns what is known of hosts that have joined, by name, see `TrainResult.hosts`; any thread
    may call it."""

    before_change: Callable[[Mapping[str, Any]], object] = lambda _: None
    """Called with the keyword arguments that environments are about to get; may raise."""


class ActorSource(Source):
    """The experience that actors send, sampled from the replay; sends them the learner's models.

    Owns the link, the proxy, the actors, publishing, and what is known of the models' age.
    """

    repeats = False

    def __init__(self, actors: Actors, config: AsyncTrainerConfig) -> None:
        """Make a source; nothing has started."""
        self.proxy = proxy = actors.proxy
        super().__init__(proxy.buffer, proxy.actors.events)
        self.config = config
        self._link, self.manager, self.hosts = actors.link, actors.manager, actors.hosts
        self._inference, self._before_change = actors.inference, actors.before_change
        self.setup = actors.setup
        self._staleness = proxy.staleness
        self._publishes, self._publish_share = actors.publishes, _PUBLISH_SHARE
        if self.setup is not None and not self.setup.elsewhere:
            self._publish_share *= min(1.0, self.setup.cores / self.manager.size)
        self._publish_after = 0.0
        self._declared, self._actors_beside = self.manager.size, actors.beside
        self._drawn: Iterator[Columns] = iter(())
        self._at_once = 1
        self._singly = drawn_singly(proxy.buffer)

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors."""
        return self.proxy.ledger.env_steps

    @property
    def warm_up_left(self) -> int:
        """Transitions that are needed before the first batch."""
        return self.proxy.limiter.warm_up_left()

    @property
    def priorities(self) -> ReplayBufferProxy:
        """The proxy."""
        return self.proxy

    def begin(self, learning: Learning) -> None:
        """Start the receiving thread, publish the first model, then start actors."""
        super().begin(learning)
        self._staleness.opt_steps = learning.opt_steps
        for one in self.proxy.observers:
            one.begin()
        self.proxy.start()
        self.publish()
        if self._inference is not None:
            self._inference.start()
        self.manager.start()

    def take(self, turns_left: int | None) -> Columns | None:
        """Return a batch as soon as the limiter allows one; None after a short wait without one."""
        batch = next(self._drawn, None)
        if batch is None:
            self._drawn = self._draw(min(self._at_once, turns_left or self._at_once))
            batch = next(self._drawn, None)
        if batch is not None:
            for one in self.proxy.observers:
                one.took()
        return batch

    def _draw(self, count: int) -> Iterator[Columns]:
        """Sample several batches if the limiter allows them now, else one or none.

        Actors act with the newest model while the learner waits.
        """
        size, watch = self.config.batch_size, self.learning.watch
        while count > 1 and not self.proxy.wait_may_sample(count * size, 0.0):
            count //= 2
        allowed = count > 1 or self.proxy.wait_may_sample(size, 0.0)
        if not allowed:
            self._publish_newest()
            allowed = self.proxy.wait_may_sample(size, _WAIT_S)
        watch.lap("wait")
        if not allowed:
            return iter(())
        together = self.proxy.sample(count * size, before_room=self._publish_newest)
        self._staleness.on_sampled(together, count)
        watch.lap("sample")
        if count > 1:
            return iter(in_batches(together, size))
        if not self._singly:
            self._at_once = self.config.draw_at_once(together)
        return iter([together])

    def learns(self, env_steps: int) -> None:
        """Note that an optimisation step begins."""
        for one in self.proxy.observers:
            one.learns(env_steps)

    def learned(self) -> None:
        """Publish the model if that is due."""
        opt_steps = self._staleness.opt_steps = self.learning.opt_steps
        if opt_steps % self.config.sync_interval_opt_steps == 0:
            self.publish()

    def publish(self) -> None:
        """Publish the agent's model to all actors; refuse a model that is not finite."""
        info = self.learning.snapshot()
        n_actors = self.manager.size + self._actors_beside
        self._link.publish(replace(info, n_actors=n_actors), "act")
        for one in self.proxy.observers:
            one.published(info)
        self._staleness.on_publish(info.version)
        self.events.append(("published", (info.version,)))
        self.learning.watch.lap("publish")

    def _publish_newest(self) -> None:
        """Publish for actors that are about to act, within a share of the learner's time."""
        if not self._publishes:
            return
        self.learning.watch.lap("sample")
        now = time.monotonic()
        if now < self._publish_after or not self._staleness.is_behind:
            return
        self.publish()
        took_s = time.monotonic() - now
        self._publish_after = now + took_s / self._publish_share

    def collect(self, env_steps: int) -> None:
        """Wait for as much new experience; less only if the limiter blocks the actors."""
        learning, proxy = self.learning, self.proxy
        enough = proxy.ledger.env_steps + env_steps
        while not proxy.blocked and proxy.ledger.env_steps < enough:
            if learning.interrupter.wait(_ROUND_WAIT_S):
                break
            learning.watch.lap("wait")
            learning.run_services()
        learning.interrupter.raise_if_failed()
        learning.watch.lap("wait")

    def change_env(self, change: EnvChange) -> None:
        """Publish the change; actors that start later begin with it."""
        self._before_change(change.kwargs)
        self._link.change_env(change)

    def set_actors(self, actors: int) -> None:
        """Change the number of actors; see `AsyncTrainer.set_actors`."""
        self.manager.resize(actors)

    def metrics(self) -> Record:
        """Return the metrics of replay, ledger, link, actors and lag."""
        record = {**self.proxy.record(), **self.proxy.actors.take(self._away())}
        record |= hosts_record(self.hosts())
        for one in self.proxy.observers:
            record |= one.record()
        return {"actors": float(self.manager.size), **record, **self._staleness.take()}

    def _away(self) -> set[ActorId]:
        return {one.actor_id for one in self.manager.fleet() if one.state == "left"}

    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """Return the proxy's state, and the numbers of actors and of their incarnations."""
        groups, numbers = self.proxy.state(save_replay=save_replay)
        asked = self.manager.asked
        more = {"fleet": {"actors": asked, "declared": self._declared}} if asked else {}
        return RunState(groups, {**numbers, "incarnation": self.manager.next_incarnation, **more})

    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Restore the ledger and, if it was saved, the replay.

        Actors start new episodes, with seeds that no earlier incarnation has used. There are as
        many as before, unless the settings now declare another number.
        """
        if change.number:
            self.change_env(change)
        sampled = checkpoint.count("opt_steps") * self.config.batch_size
        self.proxy.restore(checkpoint, sampled=sampled)
        if "fleet" not in checkpoint.meta["run"]:
            return
        if checkpoint.count("run.fleet.declared") == self._declared:
            actors = checkpoint.count("run.fleet.actors")
            try:
                self.manager.resize(actors)
            except ConfigError as error:  # more than hosts are asked for
                raise ConfigError(
                    f"{error}. It had grown to that many when it was saved: pass --actors "
                    f"{actors}, in Python actors={actors}"
                ) from error

    def finish(self) -> None:
        """Freeze the time shares of actors."""
        self.proxy.actors.end_learning()

    def end(self, save: Callable[[], object]) -> Iterator[Callable[[], object]]:
        """End in the order that loses nothing: actors finish, their experience arrives, checkpoint.

        After a failure or a signal the checkpoint comes first, since there may be no time for more.
        """
        if self._learning is None:
            yield self.manager.stop
            yield from self._stop_inference()
            yield self._link.close
            return
        saves = [save] if self._learning.opt_steps else []
        urgent = self._learning.interrupter.urgent
        yield self.manager.expect_ends
        yield self.proxy.drain
        yield self._link.stop_actors
        yield from saves if urgent else []
        yield self._stop_actors
        yield from self._stop_inference()
        yield self.proxy.close
        yield self.settle
        yield from [] if urgent else saves
        yield from (one.close for one in self.proxy.observers)
        yield lambda: None if self.proxy.hangs else self._link.close()

    def settle(self) -> None:
        """Do what can be done once all experience has arrived, such as adding it up."""

    def _stop_inference(self) -> Iterator[Callable[[], object]]:
        if self._inference is not None:
            yield self._inference.stop

    def _stop_actors(self) -> None:
        """Wait for actors to exit, unless none hears that it must."""
        self.manager.stop(timeout_s=None if self.proxy.receives else 0.0)

    def completed(self, result: TrainResult) -> TrainResult:
        """Return the result with the ledger, lags, and what each actor and host did."""
        balance, actors = self.proxy.ledger.balance(), self.proxy.actors
        return replace(
            result,
            setup=replace(result.setup, actors=self.manager.size),
            lag_at_insert=self._staleness.mean_at_insert,
            lag_when_sampled=self._staleness.mean_when_sampled,
            lag_histogram=self._staleness.histogram,
            actor_shares=actors.shares(),
            ledger={**asdict(balance), "in_flight": balance.in_flight},
            actors={str(n): row.totals() for n, row in actors.rows(self._away()).items()},
            hosts=self.hosts(),
        )
