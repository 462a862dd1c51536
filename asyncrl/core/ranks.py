"""Several learners that compute each optimisation step together: ranks, and what agents do in them.

All ranks begin with equal parameters, make the same calls in the same order, and end each step with
equal parameters, bit for bit. Their step is that of one learner with all of their rows in one
batch: each rank computes on its own rows, and gradients, statistics and recorded numbers are means
over the rows of all. `docs/algorithms/index.md` lists them for each algorithm.

    join(agent, ranks)                  # once, before learning; all agents are built with one seed
    agent.env_steps = ...               # of the whole run: the same on all ranks
    agent.opt(batch)                    # on each rank, with its own rows
    agent.opt_without_batch()           # instead, on a rank that has none, unless no rank has one
    agent.differing_ranks()             # on all ranks, now and then; () unless something is broken

Does not know how ranks reach each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, TypeVar, runtime_checkable

from asyncrl.core.agent import Agent
from asyncrl.core.declared import Count, Positive, check_declared
from asyncrl.core.errors import ConfigError

Values = TypeVar("Values", bound=Any)
"""A tensor on the agent's device."""


class Ranks(Protocol):
    """All learners of a run, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Number of this one, from 0 to `world` - 1."""

    @property
    def world(self) -> int:
        """Number of learners."""

    def sum(self, values: Values) -> Values:
        """Sum a tensor over all ranks in place, and return it: the same bits on every rank.

        Every rank calls it in the same order, with tensors of one shape and dtype. It ends with an
        error, on every rank that waits, if another one is gone or silent for too long. Raises
        `NonFiniteModel` on all ranks, which names those whose values are not finite, if a
        floating-point sum is not.
        """


class _Alone:
    rank = 0
    world = 1

    def sum(self, values: Values) -> Values:
        return values


ALONE: Ranks = _Alone()
"""One learner: sums are the values themselves."""


@runtime_checkable
class LearnsInRanks(Protocol):
    """An agent that can be one of several ranks."""

    def join(self, ranks: Ranks) -> None:
        """Compute with these from now on; raise `ConfigError` if these settings cannot.

        Random numbers of updates then differ between ranks, also after `load_state` of one state.
        """
        ...

    def opt_without_batch(self) -> Mapping[str, SupportsFloat]:
        """Do a step with the other ranks, with no rows here; return its metrics.

        There must have been a batch before, whose content does not matter: the step computes with
        it again, and it counts nothing.
        """
        ...

    def differing_ranks(self) -> tuple[int, ...]:
        """Compare what all ranks have learned; return those that differ from rank 0."""
        ...


def join(agent: Agent, ranks: Ranks) -> None:
    """Let an agent compute with all ranks; raise `ConfigError` if it cannot."""
    if ranks.world == 1:
        return
    if not isinstance(agent, LearnsInRanks):
        raise ConfigError(
            f"{type(agent).__name__} cannot be one of several learners, {ranks.world} here: it has "
            "no method `join`; derive it from UpdatingAgent, which has one, or use one learner"
        )
    agent.join(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """Several learners that learn together."""

    timeout_s: Positive = 60.0
    """Timeout for one learner to take part in a step, in seconds. After it the run ends with an
    error that names the silent one. Evaluations in the learner's process, callbacks and the start
    of environments count."""

    patience_s: Positive = 1.0
    """Seconds that learners with a batch wait for one without, for instance because its actors are
    restarting. After that they take steps without its rows."""

    check_interval_opt_steps: Count = 1000
    """Optimisation steps between two checks that all learners have the same parameters, bit for
    bit. A difference ends the run."""

    several_machines: bool = False
    """Allow learners on several machines. What they send each other is neither encrypted nor
    authenticated: only in a network in which all machines are trusted."""

    def __post_init__(self) -> None:
        check_declared(self, "ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of one process among several learners, as `torchrun` sets it."""

    rank: int
    world: int
    local_world: int
    """Ranks on this machine."""

    restarts: int = 0
    """How often all ranks were started again."""


def place_in(environ: Mapping[str, str]) -> Place | None:
    """Return this process's place among several learners; None if it is the only one."""
    if "RANK" not in environ or environ.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        world = int(environ["WORLD_SIZE"])
        place = Place(
            rank=int(environ["RANK"]),
            world=world,
            local_world=int(environ.get("LOCAL_WORLD_SIZE", world)),
            restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        )
    except ValueError as error:
        raise _bad_place(environ) from error
    if not 0 <= place.rank < world:
        raise _bad_place(environ)
    return place


def refuse_several(what: str) -> None:
    """Raise if several learners were started for what has one."""
    if place := place_in(os.environ):
        raise ConfigError(
            f"{what} trains with one learner, but {place.world} were started (WORLD_SIZE); use "
            "train_async(..., learners=several_learners), or start one process"
        )


def _bad_place(environ: Mapping[str, str]) -> ConfigError:
    given = ", ".join(
        f"{name}={environ[name]!r}"
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        if name in environ
    )
    return ConfigError(
        f"the environment names no place among several learners: {given}; RANK must be a number "
        "below WORLD_SIZE. Start learners by torchrun or by --learners, or unset RANK"
    )
