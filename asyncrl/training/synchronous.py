"""Wires a synchronous run: `train_async` in one process, reproducible bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Unpack

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.resume import open_checkpoints
from asyncrl.checkpoint.saver import RunState
from asyncrl.core.agent import Agent, AgentConfig, build_agent
from asyncrl.core.env import BatchEnv, MakeBatchEnv, make_batch_env
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluator
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import (
    ReplayBuffer,
    check_agent_and_replay,
    check_priorities,
    replay_groups,
    restore_replay,
)
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.torch_threads import are_adaptive
from asyncrl.core.types import Columns, ModelVersion
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.lockstep import refuse_several
from asyncrl.learner.run_services import RunServicesConfig
from asyncrl.learner.trainer import BaseTrainer, TrainerParts
from asyncrl.training.common_config import BY_STEPS, building, open_env, with_env_kwargs
from asyncrl.training.evaluate_apart import apart_unless
from asyncrl.training.inline_actor import InlineActor
from asyncrl.training.layout import Layout
from asyncrl.training.parts import Parts, common_parts
from asyncrl.training.rounds import Rounds, inline_segment
from asyncrl.training.run_config import RunConfig
from asyncrl.training.trained_policy import PolicyOf


class Trainer(BaseTrainer):
    """Steps, stores and optimises in turn, in the caller's thread."""

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
        evaluator: Evaluator | None = None,
        interrupter: Interrupter | None = None,
        change_env: Callable[[Mapping[str, Any]], MakeBatchEnv] | None = None,
        **parts: Unpack[TrainerParts],
    ) -> None:
        """Make a trainer; with a `checkpoint`, one that resumes from it.

        `change_env` returns a function that builds environments with other keyword arguments, for
        `set_env_kwargs`.
        """
        _check(agent, buffer, rounds)
        self.buffer = buffer
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
        self._env_steps = 0
        super().__init__(
            agent,
            interrupter=interrupter,
            evaluation=InlineEvaluation(evaluator, agent) if evaluator else None,
            parts={"services": RunServicesConfig(record=BY_STEPS), **parts},
        )
        self.services.warm_up_left = lambda: self._warm_at - self._actor.env_steps
        self._actor.table.note = self._callbacks.note
        if change_env is not None:
            self._closing.callback(self._actor.envs.close)

    @property
    def env_steps(self) -> int:
        """Environment steps, without those of a round whose optimisation is not finished.

        So a limit on them ends after a complete round.
        """
        return self._env_steps

    @property
    def _priorities(self) -> ReplayBuffer:
        return self.buffer

    def _take(self, turns_left: int | None) -> Columns | None:
        """Step all environments unless optimisation steps are due; return a batch if any.

        A checkpoint may be saved within a round; a resumed run then completes the round first.
        """
        if not self._opts_owed and self._env_steps == self._actor.env_steps:
            self._actor.run_step()
            self._opts_owed = self._opts_due()
            self.services.watch.lap("act")
        if not len(self.buffer):
            self._opts_owed = 0  # whole trajectories may be used up before the round's last step
        if not self._opts_owed:
            self._count_whole_rounds()
            return None
        self._opts_owed -= 1
        batch = self.buffer.sample(self.rounds.batch_size)
        self.services.watch.lap("sample")
        return batch

    def _learned(self) -> None:
        self._actor.model_version = ModelVersion(self.services.counts.opt_steps)

    def _change_env(self, change: EnvChange) -> None:
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

    def _begin(self) -> None:
        self._actor.begin_incarnation()

    def _end_learning(self) -> None:
        self._count_whole_rounds()

    def _count_whole_rounds(self) -> None:
        if not self._opts_owed:
            self._env_steps = self._actor.env_steps

    def _metrics(self) -> Record:
        return {"replay/size": float(len(self.buffer)), **self._actor.record()}

    def _state(self, *, save_replay: bool) -> RunState:
        """End the actor's incarnation and begin another, since environments cannot be saved.

        So a checkpoint ends the current episodes, and what follows depends on the checkpoint only.
        One by time ends none, since the clock must not change what the run computes.
        """
        cut = not self.services.is_passing
        actor = self._actor.end_incarnation() if cut else self._actor.next_incarnation()
        # Not how many were done: a run may be resumed with another interval or warm-up.
        rounds_due = self._rounds() - self._opt_rounds
        numbers = {"rounds_due": rounds_due, "opts_owed": self._opts_owed, "actor": actor}
        groups = replay_groups(self.buffer, save=save_replay)
        if cut:
            self._actor.begin_incarnation()
        return RunState(groups, numbers)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint.

        If it holds the replay, the run continues bit by bit as the run that saved it. Without a
        replay, the warm-up fills a new one first.
        """
        self._opts_owed = checkpoint.count("run.opts_owed")
        counts = ("incarnation", "env_steps", "stored", "episodes")
        self._actor.restore({name: checkpoint.count(f"run.actor.{name}") for name in counts})
        self._opt_rounds = self._rounds() - checkpoint.count("run.rounds_due")
        if self.env_change.number:
            self._actor.envs.want(self.env_change)
        self._env_steps = checkpoint.count("env_steps")
        sampled = checkpoint.count("opt_steps") * self.rounds.batch_size
        if not restore_replay(self.buffer, checkpoint.groups, sampled=sampled):
            self._opts_owed = 0  # the replay is empty
            self._warm_at += self._actor.env_steps
        self._count_whole_rounds()
        self._actor.model_version = ModelVersion(checkpoint.count("opt_steps"))


def _check(agent: Agent, buffer: ReplayBuffer, rounds: Rounds) -> None:
    check_priorities(agent, buffer)
    for name, value in (("batch_size", rounds.batch_size), ("warm-up", rounds.warmup_env_steps)):
        if value > buffer.capacity:
            raise ConfigError(
                f"{name} of {value} does not fit a replay buffer of {buffer.capacity} transitions; "
                "raise its capacity"
            )


def build_sync_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> Trainer:
    """Build a synchronous run, for `build_trainer`."""
    refuse_several("train_sync")
    rounds, agent, make_evaluator = Rounds.of(config), config.agent, parts.get("make_evaluator")
    check_agent_and_replay(agent, config.replay)
    make_eval_env = parts.get("make_eval_env") or make_env
    checkpointer, checkpoint = open_checkpoints(
        parts.get("checkpoint_dir"),
        keep=config.save.keep,
        resume=parts.get("resume", False),
        config=parts.get("run_config"),
    )
    with building(checkpointer) as closing:
        env = open_env(make_env, closing)
        layout = _layout(agent, env, config, parts.get("make_processor"))
        return Trainer(
            learner := build_agent(agent, env.spec, config.context(env.n_envs)),
            env,
            layout.replay.build(layout.schema, derive_seed(config.seed, Role.REPLAY)),
            rounds,
            schema=layout.schema,
            segment=config.segment,
            processor=layout.make_processor(),
            seed=config.seed,
            change_env=partial(with_env_kwargs, make_env),
            evaluator=_make_evaluator(config, make_evaluator, make_eval_env, closing),
            checkpointer=checkpointer,
            interrupter=parts.get("interrupter"),
            checkpoint=checkpoint,
            make_policy=PolicyOf(agent, env.spec),
            evaluate_apart=apart_unless(make_evaluator, agent, make_eval_env, config.evaluate),
            adaptive_threads=are_adaptive(agent, learner),
            closing=closing,
            stop=parts.get("stop"),
            services=config,
            **common_parts(parts),
        )


def _layout(
    agent: AgentConfig,
    env: BatchEnv,
    config: RunConfig,
    make_processor: Callable[[], StepProcessor] | None,
) -> Layout:
    return Layout(
        agent,
        env.spec,
        config.replay,
        inline_segment(config, env.n_envs),
        make_processor,
        goal_reward=lambda: getattr(env, "goal_reward", None),
        n_frames=getattr(env, "n_frames", 1),
    )


def _make_evaluator(
    config: RunConfig, own: MakeEvaluator | None, make_env: MakeBatchEnv, closing: ExitStack
) -> Evaluator | None:
    if config.evaluate.where == "off":
        return None
    if own:
        evaluator: Evaluator = own()
    else:
        env = make_batch_env(make_env, "make_eval_env")
        seed = derive_seed(config.evaluate.seed, Role.EVALUATION)
        evaluator = EpisodeEvaluator(env, config.evaluate.play, seed)
    closing.callback(evaluator.close)
    return evaluator
