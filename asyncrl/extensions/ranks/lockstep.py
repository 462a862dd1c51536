"""Keeps several learners in step: all learn, save, stop and fail at the same optimisation step.

Before each step, all ranks sum a few numbers: which have a batch or must stop, whether rank 0 has
saved, and the counters of the whole run. Each then decides the same. The others wait for a rank
without a batch for some time; after that they continue, and it contributes no rows. Does not know
how numbers are summed, and does not import torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from asyncrl.core.errors import ConfigError, RankFailed
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import Ranks
from asyncrl.core.recorder import Record
from asyncrl.fleet.ledger import Balance

logger = logging.getLogger(__name__)

STORE_FILE = "ASYNCRL_RANKS_STORE"
"""Environment variable with the file over which learners of one machine find each other."""


def process_state(pid: int) -> str:
    """Return the letter of a process's state in /proc, as T for stopped; "" if it is not there."""
    return next(iter(process_fields(pid)), "")


def process_fields(pid: int) -> list[str]:
    """Return what /proc says of a process from its state on; nothing if it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


Saved = Literal["kept", "passing"]
"""A checkpoint that stays, or one that the next one replaces."""


class Group(Ranks, Protocol):
    """Ranks that can also exchange numbers and short texts."""

    def exchange(self, numbers: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        ...

    def post(self, key: str, text: str) -> None:
        """Store a short text of this rank under a key, for the others to read."""
        ...

    def posted(self, key: str) -> dict[int, str]:
        """Return the texts that ranks have posted under a key so far, by rank."""
        ...

    def wait_posted(self, key: str, rank: int, more_s: float = 0.0) -> str:
        """Wait until a rank has posted a text under a key, and return it.

        The timeout is that of a step, and some more.
        """
        ...

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group; with an error, the other ranks fail, too, and name it."""
        ...


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters whose sum over all ranks is that of the run."""

    env_steps: int = 0
    produced: int = 0
    stored: int = 0
    dropped: int = 0
    lost: int = 0
    episodes: int = 0
    incarnation: int = 0
    replay_size: int = 0
    inserted: int = 0
    sampled: int = 0

    def since(self, before: Totals, add_to: Totals) -> Totals:
        """Return `add_to` with what was counted here since `before`."""
        return Totals(
            **{
                f.name: getattr(add_to, f.name) + getattr(self, f.name) - getattr(before, f.name)
                for f in fields(self)
            }
        )


@dataclass(slots=True)
class _Flags:
    """The state of one rank before a step; summed over all."""

    ready: float = 0.0
    """Whether it has a batch."""

    impatient: float = 0.0
    """Whether it has had one for too long."""

    begun: float = 0.0
    """Whether it can take part without one: it has had one before."""

    stop: float = 0.0
    urgent: float = 0.0

    kept: float = 0.0
    """Whether rank 0 has saved a checkpoint since the last turn."""

    passing: float = 0.0
    """The same for one that the next one replaces."""

    asked: float = 0.0
    """Whether another rank was asked to save."""


def _numbers_of(counters: _Flags | Totals) -> list[float]:
    """Return the fields in order; `asdict` would take a twentieth of a small network's step."""
    return [getattr(counters, f.name) for f in fields(counters)]


_OF_EACH = ("stored", "replay_size", "steps_without_batch")
"""What is recorded of each rank."""


class Lockstep:
    """One rank's view of the turns of all ranks."""

    def __init__(
        self,
        group: Group,
        interrupter: Interrupter,
        own: Callable[[], Totals],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` returns the counters of this rank."""
        self.group = group
        self.stopped = False
        """Whether all ranks have agreed to stop."""
        self.of_each: Sequence[Sequence[float]] = ()
        """What `_OF_EACH` names, of each rank at the last turn."""
        self.steps_without_batch = 0
        """Optimisation steps in which this rank had no rows."""
        self.totals = self._counted = Totals()
        """Counters of the whole run at the last turn: the same on all ranks."""
        self._interrupter, self._own = interrupter, own
        self._patience_s, self._clock = patience_s, clock
        self._begun = False
        self._said = _Flags()
        self._own_save: Saved | None = None
        self._ready_since: float | None = None

    def now(self) -> Totals:
        """Return the counters of the run, with what was counted here since the last turn."""
        return self._own().since(self._counted, self.totals)

    def say_saved(self, *, passing: bool) -> None:
        """Let the others know in the next turn that this rank saves a checkpoint."""
        self._own_save = "passing" if passing else "kept"

    def take_saved(self) -> Saved | None:
        """Return what rank 0 has saved before the last turn, at the same optimisation step."""
        said, self._said = self._said, _Flags()
        return "kept" if said.kept else "passing" if said.passing else None

    def record(self) -> Record:
        """Return the metrics of all learners together, in place of those of this one."""
        totals, balance = self.now(), self.balance()
        return {
            "samples_total": float(totals.stored),
            "episodes": float(totals.episodes),
            "samples_per_insert": totals.sampled / totals.inserted if totals.inserted else 0.0,
            "replay/size": float(totals.replay_size),
            **{f"ledger/{name}": float(n) for name, n in asdict(balance).items()},
            "ledger/in_flight": float(balance.in_flight),
            **{
                f"rank/{rank}/{name}": number
                for rank, numbers in enumerate(self.of_each)
                for name, number in zip(_OF_EACH, numbers, strict=True)
            },
        }

    def balance(self) -> Balance:
        """Return the ledger of all learners."""
        totals = self.now()
        return Balance(**{f.name: getattr(totals, f.name) for f in fields(Balance)})

    def saved(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return a learner's numbers for a checkpoint with the counters of all.

        A resumed run counts on from them in rank 0, however many ranks it has. The limiter's counts
        belong to the replay, of which each rank saves its own.
        """
        totals = self.now()
        ledger = asdict(self.balance())
        counts = {name: getattr(totals, name) for name in ("env_steps", "episodes", "incarnation")}
        return {**numbers, **counts, "ledger": ledger, "ranks": self.group.world}

    def settle(self, more_s: float = 0.0) -> None:
        """Count what arrived after the last turn, when actors have ended; leave the group.

        A rank may be later than others by some more time than in a step: one of them evaluates.
        """
        if self._interrupter.urgent:
            return
        try:
            self.group.post("settles", "yes")
            for rank in range(self.group.world):
                self.group.wait_posted("settles", rank, more_s)
            self._add_up([])
        except RankFailed as error:
            logger.warning("the last counters of all learners were not added up: %s", error)
        self.group.leave()

    def turn(self, *, ready: bool) -> bool:
        """Meet all ranks before a step; return whether all of them take it now."""
        said = self._said = _Flags(*self._add_up(_numbers_of(self._flags(ready=ready))))
        if said.asked and not (self.group.rank or said.kept or said.passing):
            self._interrupter.save_requested = True
        if said.stop:
            self._stop(urgent=said.urgent > 0)
            return False
        world = self.group.world
        goes = said.ready == world or (said.impatient > 0 and said.begun == world)
        if goes:
            self._begun |= ready
            self._ready_since = None
            self.steps_without_batch += not ready
        return goes

    def stop(self) -> None:
        """Let all ranks stop before the next step, unless they have agreed to already."""
        if not self.stopped:
            self._interrupter.stop("the loop ended")
            self.turn(ready=False)

    def _add_up(self, flags: list[float]) -> list[float]:
        """Sum flags and counters over all ranks; return the flags."""
        self._counted = self._own()
        counted, (rank, world) = self._counted, (self.group.rank, self.group.world)
        slots = [0.0] * (len(_OF_EACH) * world)  # each rank fills its own
        slots[rank::world] = counted.stored, counted.replay_size, self.steps_without_batch
        sums = self.group.exchange([*flags, *slots, *_numbers_of(counted)])
        slots = sums[len(flags) : len(flags) + len(slots)]
        self.of_each = [slots[one::world] for one in range(world)]
        self.totals = Totals(*map(round, sums[len(flags) + len(slots) :]))
        return sums[: len(flags)]

    def _flags(self, *, ready: bool) -> _Flags:
        now, interrupter = self._clock(), self._interrupter
        since = self._ready_since
        if ready and since is None:
            since = self._ready_since = now
        impatient = ready and since is not None and now - since >= self._patience_s
        if interrupter.is_set:
            self.group.post("stop", interrupter.reason or "stopped")
        (rank, save), self._own_save = (self.group.rank, self._own_save), None
        return _Flags(
            ready=ready,
            impatient=impatient,
            begun=self._begun or ready,
            stop=interrupter.is_set,
            urgent=interrupter.urgent,
            kept=not rank and save == "kept",
            passing=not rank and save == "passing",
            asked=rank > 0 and save is not None,
        )

    def _stop(self, *, urgent: bool) -> None:
        self.stopped = True
        reason = "another learner has stopped"
        with suppress(StopIteration):
            rank, reason = next(iter(self.group.posted("stop").items()))
            reason = f"{reason} (rank {rank})"
        self._interrupter.stop(self._interrupter.reason or reason, urgent=urgent)


def check_alike(group: Group, what: Mapping[str, float]) -> None:
    """Raise if a number differs between ranks, which must be equal when a run begins."""
    own = list(what.values())
    slots = [0.0] * (group.world * len(own))
    slots[group.rank * len(own) : (group.rank + 1) * len(own)] = own
    all_values = group.exchange(slots)
    for i, name in enumerate(what):
        values = all_values[i :: len(own)]
        if len(set(values)) > 1:
            said = ", ".join(f"{value:g} in rank {rank}" for rank, value in enumerate(values))
            raise ConfigError(
                f"the learners of a run must begin alike, but {name} differs: {said}; start all "
                "with the same command, version and files"
            )
