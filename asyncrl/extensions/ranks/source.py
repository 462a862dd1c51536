"""The actors of one of several learners, which all take each optimisation step together.

Rank 0 evaluates, records, and says when to save; all ranks stop at the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import Shards
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent
from asyncrl.core.errors import ConfigError, RankFailed
from asyncrl.core.messages import EnvChange, ModelInfo
from asyncrl.core.ranks import LearnsInRanks, join
from asyncrl.core.recorder import Record
from asyncrl.core.types import Columns
from asyncrl.extensions.ranks.lockstep import Group, Lockstep, Totals, check_alike
from asyncrl.learner.actor_source import Actors, ActorSource
from asyncrl.learner.evaluation import Scored
from asyncrl.learner.source import Learning
from asyncrl.learner.train_result import TrainResult
from asyncrl.run.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class OnRank0:
    """Where the model of a rank other than 0 is evaluated: nowhere, since rank 0 has the same."""

    busy = False

    def request(self, model: ModelInfo) -> None:
        """Do nothing."""

    def take(self) -> list[Scored]:
        """Return nothing."""
        return []


class RankedSource(ActorSource):
    """An `ActorSource` whose batches are taken when all ranks have theirs."""

    def __init__(
        self,
        actors: Actors,
        config: RunConfig,
        *,
        agent: Agent,
        group: Group,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        """Join the agent to the others of its group; `checkpointer` is the one of this rank."""
        join(agent, group)
        manager = actors.manager
        beside = manager.size * (group.world - 1)
        super().__init__(replace(actors, beside=beside), config.trainer)
        self.group = group
        self._agent, self._ranks = agent, config.ranks
        self._shards = checkpointer if isinstance(checkpointer, Shards) else None
        self._interrupter = actors.proxy.interrupter
        self._final_evaluation_s = config.evaluate.final_timeout_s
        self._lockstep = Lockstep(
            group, self._interrupter, self._own_totals, config.ranks.patience_s
        )
        self._first_incarnation = manager.next_incarnation
        self._own_batch: Columns | None = None
        self._follows = self._is_over = False

    @property
    def env_steps(self) -> int:
        """Environment steps of all learners' actors; while they learn, at the last step of all."""
        learns = self._learning is not None and not self._is_over
        return (self._lockstep.totals if learns else self._lockstep.now()).env_steps

    def begin(self, learning: Learning) -> None:
        """Start as all others do."""
        check_alike(self.group, {"the number of optimisation steps": learning.opt_steps})
        self._check_equal(learning.opt_steps)
        super().begin(learning)

    def take(self, turns_left: int | None) -> Columns | None:
        """Return a batch once all ranks take a step."""
        if self._own_batch is None:
            self._own_batch = super().take(turns_left)
        goes = self._lockstep.turn(ready=self._own_batch is not None)
        self.learning.watch.lap("ranks")
        self._save_as_rank_0()
        if not goes:
            return None
        batch, self._own_batch = self._own_batch, None
        if batch is None:
            assert isinstance(self._agent, LearnsInRanks)  # noqa: S101  # `join` has seen to it
            self.learning.learn_by(self._agent.opt_without_batch)
        return batch

    def _save_as_rank_0(self) -> None:
        saved = self._lockstep.take_saved()
        if saved and self._shards is not None:
            self._shards.expect(str(self.learning.opt_steps), passing=saved == "passing")
            self._follows = True
            self.learning.save()
            self._follows = False

    def learned(self) -> None:
        """Compare the ranks' parameters if that is due."""
        opt_steps = self.learning.opt_steps
        if opt_steps % self._ranks.check_interval_opt_steps == 0:
            self._check_equal(opt_steps)
        super().learned()

    def _check_equal(self, opt_steps: int) -> None:
        """Raise if parameters differ between learners; all of them call it at the same step."""
        assert isinstance(self._agent, LearnsInRanks)  # noqa: S101  # `join` has seen to it
        if different := self._agent.differing_ranks():
            raise RankFailed(
                f"after {opt_steps} optimisation steps, parameters of rank "
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
            incarnation=self.manager.next_incarnation
            - (self._first_incarnation if self.group.rank else 0),
            replay_size=len(proxy.buffer),
            inserted=proxy.limiter.inserted // proxy.limiter.stride,
            sampled=proxy.limiter.sampled,
        )

    def set_actors(self, actors: int) -> None:
        """Refuse: a share of the run cannot change alone."""
        raise ConfigError(
            "several learners have a fixed number of actors; end the run, and resume it with "
            "another --actors"
        )

    def metrics(self) -> Record:
        """Return the metrics of all learners together, in place of those of this one."""
        return {**super().metrics(), **self._lockstep.record()}

    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """Return this rank's replay with the counters of all, and let the others save, too."""
        if not self._follows:
            self._lockstep.say_saved(passing=passing)
        groups, numbers = super().state(save_replay=save_replay, passing=passing)
        return RunState(groups, self._lockstep.saved(numbers))

    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Restore the ledger and the replay; the number of actors is as the settings have it."""
        meta = {**checkpoint.meta, "run": {**checkpoint.meta["run"]}}
        meta["run"].pop("fleet", None)
        super().restore(replace(checkpoint, meta=meta), change)

    def finish(self) -> None:
        """Let the others stop at this step."""
        super().finish()
        if not self._interrupter.error:
            self._lockstep.stop()
            self._save_as_rank_0()

    def end(self, save: Callable[[], object]) -> Iterator[Callable[[], object]]:
        """End, and add up what has arrived; leave the others at once after a failure or signal."""
        self._is_over = True
        if self._learning is None or self._interrupter.urgent:
            yield partial(self.group.leave, self._interrupter.error)
        if self._shards is not None and self._learning is not None:
            self._shards.expect(str(self._learning.opt_steps), passing=False)
        yield from super().end(save)

    def settle(self) -> None:
        """Add up what has arrived at all learners."""
        self._lockstep.settle(self._final_evaluation_s)

    def completed(self, result: TrainResult) -> TrainResult:
        """Return the result with the ledger of all learners."""
        balance = self._lockstep.balance()
        ledger = {**asdict(balance), "in_flight": balance.in_flight}
        return replace(super().completed(result), ledger=ledger)
