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

from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat, TypeVar, runtime_checkable

from asyncrl.core.agent import Agent
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
