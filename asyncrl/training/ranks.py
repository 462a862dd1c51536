"""One learner's share of a run that several of them train together.

The settings of a run mean the whole run, whatever the number of learners: here, and only here, they
are divided by it. Loads torch only if there are several learners.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from typing import Any, TypeVar, Unpack

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import Resume, open_checkpoints
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.replay_buffer import REPLAY, ReplayBuffer
from asyncrl.core.transport import LearnerLink
from asyncrl.learner.actor_source import ActorSource, SourceParts
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.lockstep import Group, RanksConfig, place_in
from asyncrl.learner.ranked_source import OnRank0, RankedSource
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.trainer import CommonParts
from asyncrl.replay.files import deal
from asyncrl.training.plan import RunPlan
from asyncrl.training.run_config import RunConfig

C = TypeVar("C", bound=RunConfig)


def join_ranks(config: RanksConfig) -> Group | None:
    """Join the other learners if torchrun, or `--learners`, has started several."""
    place = place_in(os.environ)
    if place is None:
        return None
    module: Any = import_module("asyncrl.learner.distributed")
    group: Group = module.joined(place, config)
    return group


@contextmanager
def sharing_failure(group: Group | None) -> Iterator[None]:
    """Let the other learners fail with an error of the block, instead of waiting."""
    try:
        yield
    except BaseException as error:
        if group is not None:
            group.leave(error)
        raise


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several learners trains with; the whole run if it is the only one."""

    group: Group | None
    config: RunConfig
    actor_agents: Sequence[AgentConfig] | None

    @property
    def rank(self) -> int:
        """Number of this learner."""
        return 0 if self.group is None else self.group.rank

    @property
    def world(self) -> int:
        """Number of learners."""
        return 1 if self.group is None else self.group.world

    @property
    def evaluation(self) -> EvaluationSite | None:
        """Where models are evaluated, unless the settings say so."""
        return OnRank0() if self.rank else None

    def source(
        self,
        link: LearnerLink,
        proxy: ReplayBufferProxy,
        agent: Agent,
        interrupter: Interrupter,
        checkpointer: Checkpointer | None,
        **parts: Unpack[SourceParts],
    ) -> ActorSource:
        """Return where the batches come from."""
        config = self.config
        if self.group is None:
            return ActorSource(link, proxy, config.trainer, **parts)
        return RankedSource(
            link,
            proxy,
            config.trainer,
            agent=agent,
            group=self.group,
            ranks=config.ranks,
            interrupter=interrupter,
            checkpointer=checkpointer,
            final_evaluation_s=config.evaluate.final_timeout_s,
            **parts,
        )

    def open_checkpoints(
        self,
        directory: str | PathLike[str] | None,
        resume: Resume,
        run_config: Mapping[str, object] | None,
        *,
        buffer: ReplayBuffer,
        plan: RunPlan,
        undo: ExitStack,
    ) -> tuple[Checkpointer | None, Checkpoint | None]:
        """Return what `open_checkpoints` does, which `undo` unlocks.

        Fill the replay with this learner's share if another number of learners saved it.
        """
        checkpointer, checkpoint = open_checkpoints(
            directory,
            keep=self.config.save.keep,
            resume=resume,
            config=run_config,
            rank=self.rank,
            world=self.world,
        )
        if checkpointer:
            undo.callback(checkpointer.unlock)
        _take_share(checkpoint, buffer, plan, rank=self.rank, world=self.world)
        return checkpointer, checkpoint


@contextmanager
def joined_share(
    config: RunConfig,
    actor_agents: Sequence[AgentConfig] | None,
    parts: CommonParts,
    *,
    strategy: object,
) -> Iterator[Share]:
    """Join the other learners, if there are any, and yield the share of this one."""
    group = join_ranks(config.ranks)
    rank, world = (0, 1) if group is None else (group.rank, group.world)
    with sharing_failure(group):
        check_several(world, parts, rank, strategy=strategy)
        yield Share(group, *share_of(config, actor_agents, rank, world))


def share_of(
    config: C, actor_agents: Sequence[AgentConfig] | None, rank: int, world: int
) -> tuple[C, Sequence[AgentConfig] | None]:
    """Return the settings and actors of one of several learners; refuse what cannot be divided."""
    if world == 1:
        return config, actor_agents
    _refuse(config, world)
    replay: Any = config.replay
    limiter, batch_size = config.limiter, config.trainer.batch_size
    actors = _divided("actors", config.actors, world)
    if actor_agents is not None:
        actor_agents = actor_agents[rank * actors : (rank + 1) * actors]
    divided = {"capacity": _divided("replay.capacity", replay.capacity, world)}
    if hasattr(replay, "beta_samples"):
        divided["beta_samples"] = -(-replay.beta_samples // world)
    share = replace(
        config,
        actors=actors,
        replay=replace(replay, **divided),
        trainer=replace(
            config.trainer, batch_size=_divided("trainer.batch_size", batch_size, world)
        ),
        limiter=replace(
            limiter,
            min_size=-(-limiter.min_size // world),
            band_transitions=-(-limiter.band_transitions // world),
        ),
    )
    return _following(share) if rank else share, actor_agents


def _following(config: C) -> C:
    """Return settings of a rank that neither evaluates nor decides when to save."""
    return replace(
        config,
        evaluate=replace(config.evaluate, where="off", interval_opt_steps=0),
        save=replace(config.save, interval_opt_steps=0, interval_s=0.0),
    )


def _divided(name: str, value: int, world: int) -> int:
    if value % world:
        below = value - value % world
        least = f"{below} or {below + world}" if below else f"{world}"
        raise ConfigError(
            f"{name}={value} means the whole run and cannot be divided among {world} learners; set "
            f"it to {least}, or change the number of learners"
        )
    return value // world


def _refuse(config: RunConfig, world: int) -> None:
    """Raise if several learners cannot work with these settings."""
    misfits = {
        "launcher": (config.launcher, "process"),
        "inference": (config.inference, "actor"),
    }
    for name, (value, needed) in misfits.items():
        if value != needed:
            raise ConfigError(
                f"{name} is {value!r}, but there are {world} learners, which work with "
                f"{needed!r} only; set it to {needed}, or use one learner"
            )
    if config.evaluate.where == "inline":
        raise ConfigError(
            f"evaluate.where is inline, but {world} learners would wait for it in each evaluation; "
            "set it to background"
        )
    if not hasattr(config.replay, "capacity"):
        raise ConfigError(
            f"{type(config.replay).__name__} has no capacity that could be divided among {world} "
            "learners; use a replay of asyncrl, or one learner"
        )


def check_several(world: int, parts: CommonParts, rank: int, *, strategy: object) -> None:
    """Raise if an argument of a run cannot work with several learners; only rank 0 records."""
    if world == 1:
        return
    if rank:
        parts["recorder"] = None
    if strategy is not None:
        raise ConfigError(
            f"a strategy was passed, {strategy!r:.80}, but {world} learners take each step "
            "together, which only the default loop does; pass none, or use one learner"
        )


def _take_share(
    checkpoint: Checkpoint | None,
    buffer: ReplayBuffer,
    plan: RunPlan,
    *,
    rank: int,
    world: int,
) -> None:
    """Fill a replay with a learner's share of what another number of learners had saved.

    A replay that returns each transition once stays empty: what it held is of an old model.
    """
    if checkpoint is None or buffer.once:
        return
    names = sorted(name for name in checkpoint.groups if name.startswith(f"{REPLAY}-"))
    if not names:
        return
    deal([checkpoint.groups[name] for name in names], buffer, plan.schema, rank=rank, world=world)
    saved = checkpoint.meta["run"]["limiters"]
    share = {name: sum(one[name] for one in saved) // world for name in saved[0]}
    plan.limiter.resume_at({**share, "samples_per_insert": saved[0]["samples_per_insert"]})
