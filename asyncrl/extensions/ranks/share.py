"""One learner's share of a run that several of them train together.

The settings of a run mean the whole run, whatever the number of learners: here, and only here, they
are divided by it. Loads torch only if there are several learners.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.ranks import RanksConfig, place_in
from asyncrl.extensions.ranks.lockstep import Group
from asyncrl.extensions.ranks.source import OnRank0, RankedSource
from asyncrl.learner.actor_source import Actors, ActorSource
from asyncrl.run.parts import Parts
from asyncrl.run.run_config import RunConfig
from asyncrl.run.share import Share

C = TypeVar("C", bound=RunConfig)


def join_ranks(config: RanksConfig) -> Group | None:
    """Join the other learners if torchrun, or `--learners`, has started several."""
    place = place_in(os.environ)
    if place is None:
        return None
    module: Any = import_module("asyncrl.extensions.ranks.distributed")
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


class RankedShare(Share):
    """What one of several learners trains with."""

    def __init__(
        self, config: RunConfig, actor_agents: Sequence[AgentConfig] | None, group: Group
    ) -> None:
        """Take this rank's share of all settings."""
        super().__init__(*share_of(config, actor_agents, group.rank, group.world))
        self.rank, self.world, self._group = group.rank, group.world, group
        if group.rank:
            self.evaluation = OnRank0()

    def source(
        self, actors: Actors, agent: Agent, checkpointer: Checkpointer | None
    ) -> ActorSource:
        """Return a source that takes each step together with the others."""
        return RankedSource(
            actors, self.config, agent=agent, group=self._group, checkpointer=checkpointer
        )


@contextmanager
def several_learners(
    config: RunConfig, actor_agents: Sequence[AgentConfig] | None, parts: Parts
) -> Iterator[Share]:
    """Join the other learners of a run, and yield the share of this one.

        train_async(..., learners=several_learners)     # in a script that torchrun starts

    The whole run is the share of a process that is the only one.
    """
    group = join_ranks(config.ranks)
    with sharing_failure(group):
        if group is None:
            yield Share(config, actor_agents)
            return
        check_strategy(parts.get("strategy"), group.world)
        if group.rank:  # rank 0 records
            parts["recorder"] = None
        yield RankedShare(config, actor_agents, group)


def share_of(
    config: C, actor_agents: Sequence[AgentConfig] | None, rank: int, world: int
) -> tuple[C, Sequence[AgentConfig] | None]:
    """Return the settings and actors of one of several learners; refuse what cannot be divided."""
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


def check_strategy(strategy: object, world: int) -> None:
    """Raise if there is a strategy, which several learners cannot follow."""
    if strategy is not None:
        raise ConfigError(
            f"a strategy was passed, {strategy!r:.80}, but {world} learners take each step "
            "together, which only the default loop does; pass none, or use one learner"
        )
