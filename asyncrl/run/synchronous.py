"""A run in one process: environments are stepped between the learner's steps, in its thread.

Reproducible bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asyncrl.actor.inline_actor import InlineActor
from asyncrl.actor.step_processor import Layout, StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, build_agent
from asyncrl.core.env import BatchEnv, MakeBatchEnv, source_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import EnvChange
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import (
    ReplayBuffer,
    check_agent_and_replay,
    replay_groups,
    restore_replay,
)
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.types import Columns, ModelVersion
from asyncrl.learner.source import Learning, Source
from asyncrl.learner.trainer import Trainer
from asyncrl.run.evaluators import evaluation_here, evaluator_maker
from asyncrl.run.parts import Parts, in_one_process, open_env, trainer_of
from asyncrl.run.run_config import Rounds, RunConfig, inline_segment


def build_sync_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> Trainer:
    """Build a synchronous run, for `build_trainer`."""
    rounds, agent, play = Rounds.of(config), config.agent, config.evaluate
    check_agent_and_replay(agent, config.replay)
    make_eval_env = parts.get("make_eval_env") or make_env
    evaluate = evaluator_maker(parts.get("make_evaluator"), make_eval_env, play)
    with in_one_process("train_sync", config, parts) as opened:
        env = open_env(make_env, opened.closing)
        segment = inline_segment(config, env.n_envs)
        layout = Layout(agent, env, config.replay, segment, parts.get("make_processor"))
        learner = build_agent(agent, env.spec, config.context(env.n_envs))
        source = InlineSource(
            learner,
            env,
            layout.replay.build(layout.schema, derive_seed(config.seed, Role.REPLAY)),
            rounds,
            schema=layout.schema,
            segment=config.segment,
            processor=layout.make_processor(),
            seed=config.seed,
            change_env=source_of(make_env).with_kwargs,
        )
        evaluation = evaluation_here(play, evaluate, learner, opened.closing)
        return trainer_of(
            Trainer, config, parts, opened, learner, source, spec=env.spec, evaluation=evaluation
        )


class InlineSource(Source):
    """Steps environments with the learning agent itself, and samples from what they returned."""

    def __init__(
        self,
        agent: Agent,
        env: BatchEnv,
        buffer: ReplayBuffer,
        rounds: Rounds,
        *,
        schema: SegmentSchema,
        segment: SegmentConfig | None = None,
        processor: StepProcessor,
        seed: int,
        change_env: Callable[[Mapping[str, Any]], MakeBatchEnv] | None = None,
    ) -> None:
        """Make a source; nothing has been stepped.

        `change_env` returns a function that builds environments with other keyword arguments, for
        `set_env_kwargs`. The environments that are then built are closed at the end.
        """
        _check_sizes(buffer, rounds)
        self.rounds = rounds
        self._opt_rounds = 0
        self._opts_owed = 0
        self._warm_at = rounds.warmup_env_steps  # environment steps at the end of the warm-up
        self._actor = InlineActor(
            agent,
            env,
            buffer,
            schema=schema,
            segment=segment or SegmentConfig(),
            processor=processor,
            seed=seed,
            change_env=change_env,
        )
        self._owns_env = change_env is not None
        self._env_steps = 0
        super().__init__(buffer, self._actor.table.events)

    @property
    def env_steps(self) -> int:
        """Environment steps, without those of a round whose optimisation is not finished.

        So a limit on them ends after a complete round.
        """
        return self._env_steps

    @property
    def warm_up_left(self) -> int:
        """Environment steps until the first round of optimisation."""
        return self._warm_at - self._actor.env_steps

    def begin(self, learning: Learning) -> None:
        """Begin the first episodes."""
        super().begin(learning)
        self._actor.begin_incarnation()

    def take(self, turns_left: int | None) -> Columns | None:
        """Step all environments unless optimisation steps are due; return a batch if any.

        A checkpoint may be saved within a round; a resumed run then completes the round first. With
        `turns_left`, the loop decides on the rounds: environments are stepped by `collect` only.
        """
        if turns_left is not None and len(self.buffer):
            return self._sample()
        if not self._opts_owed and self._env_steps == self._actor.env_steps:
            self._actor.run_step()
            self._opts_owed = self._opts_due()
            self.learning.watch.lap("act")
        if not len(self.buffer):
            self._opts_owed = 0  # whole trajectories may be used up before the round's last step
        if not self._opts_owed:
            self._count_whole_rounds()
            return None
        self._opts_owed -= 1
        return self._sample()

    def _sample(self) -> Columns:
        batch = self.buffer.sample(self.rounds.batch_size)
        self.learning.watch.lap("sample")
        return batch

    def collect(self, env_steps: int) -> None:
        """Step all environments until they have made as many steps, or the run ends."""
        learning, enough = self.learning, self._actor.env_steps + env_steps
        while self._actor.env_steps < enough and not learning.interrupter.is_set:
            self._actor.run_step()
            self._env_steps = self._actor.env_steps
            learning.watch.lap("act")
            learning.run_services()
        if self.buffer.once:
            self._actor.cut()

    def learned(self) -> None:
        """Let the environments act with the model as it is now."""
        self._actor.model_version = ModelVersion(self.learning.opt_steps)

    def change_env(self, change: EnvChange) -> None:
        """Rebuild the environments when their next episode begins."""
        self._actor.envs.want(change)

    def _opts_due(self) -> int:
        """Return the optimisation steps due now; none before the warm-up is over."""
        rounds = self._rounds()
        if rounds > self._opt_rounds and self.buffer.once:
            self._actor.cut()
        if len(self.buffer) == 0:
            return 0
        due, self._opt_rounds = rounds - self._opt_rounds, rounds
        if self._actor.env_steps < self._warm_at:
            return 0
        return due * self.rounds.opt_steps_per_interval

    def _rounds(self) -> int:
        """Return the number of rounds that belong to the environment steps so far."""
        done = self._actor.env_steps - self.rounds.warmup_env_steps
        return max(0, done) // self.rounds.opt_interval_env_steps

    def finish(self) -> None:
        """Count the steps of the last round, if it is over."""
        self._count_whole_rounds()

    def _count_whole_rounds(self) -> None:
        if not self._opts_owed:
            self._env_steps = self._actor.env_steps

    def metrics(self) -> Record:
        """Return the size of the replay, and the actor's metrics."""
        return {"replay/size": float(len(self.buffer)), **self._actor.record()}

    def state(self, *, save_replay: bool, passing: bool) -> RunState:
        """End the actor's incarnation and begin another, since environments cannot be saved.

        So a checkpoint ends the current episodes, and what follows depends on the checkpoint only.
        One that is passing ends none, since the clock must not change what the run computes.
        """
        actor = self._actor.next_incarnation() if passing else self._actor.end_incarnation()
        # Not how many were done: a run may be resumed with another interval or warm-up.
        rounds_due = self._rounds() - self._opt_rounds
        numbers = {"rounds_due": rounds_due, "opts_owed": self._opts_owed, "actor": actor}
        groups = replay_groups(self.buffer, save=save_replay)
        if not passing:
            self._actor.begin_incarnation()
        return RunState(groups, numbers)

    def restore(self, checkpoint: Checkpoint, change: EnvChange) -> None:
        """Resume from a checkpoint.

        If it holds the replay, the run continues bit by bit as the run that saved it. Without a
        replay, the warm-up fills a new one first.
        """
        self._opts_owed = checkpoint.count("run.opts_owed")
        counts = ("incarnation", "env_steps", "stored", "episodes")
        self._actor.restore({name: checkpoint.count(f"run.actor.{name}") for name in counts})
        self._opt_rounds = self._rounds() - checkpoint.count("run.rounds_due")
        if change.number:
            self._actor.envs.want(change)
        self._env_steps = checkpoint.count("env_steps")
        sampled = checkpoint.count("opt_steps") * self.rounds.batch_size
        if not restore_replay(self.buffer, checkpoint.groups, sampled=sampled):
            self._opts_owed = 0  # the replay is empty
            self._warm_at += self._actor.env_steps
        self._count_whole_rounds()
        self._actor.model_version = ModelVersion(checkpoint.count("opt_steps"))

    def end(self, save: Callable[[], object]) -> Iterator[Callable[[], object]]:
        """Save, and close environments that were built meanwhile."""
        yield from super().end(save)
        if self._owns_env:
            yield self._actor.envs.close


def _check_sizes(buffer: ReplayBuffer, rounds: Rounds) -> None:
    for name, value in (("batch_size", rounds.batch_size), ("warm-up", rounds.warmup_env_steps)):
        if value > buffer.capacity:
            raise ConfigError(
                f"{name} of {value} does not fit a replay buffer of {buffer.capacity} transitions; "
                "raise its capacity"
            )
