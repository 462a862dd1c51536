"""Several learners as threads of one process, for tests of what they compute together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

_DEADLINE_S = 60.0


class ThreadRanks:
    """The ranks of some threads; `members` are what each of them gets."""

    def __init__(self, world: int) -> None:
        self.members = [_Member(self, rank, world) for rank in range(world)]
        self.barrier = threading.Barrier(world, timeout=_DEADLINE_S)
        self.given: list[torch.Tensor] = [torch.empty(0)] * world

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Call one function for each rank at the same time; return their results.

        Waits for all of them. If one fails, its error is raised, not those of ranks that waited.
        """
        with ThreadPoolExecutor(len(calls)) as pool:
            running = [pool.submit(self._guarded, call) for call in calls]
        errors = [error for one in running if (error := one.exception()) is not None]
        self.barrier.reset()
        if errors:
            raise next(
                (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
            )
        return [one.result() for one in running]

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except BaseException:
            self.barrier.abort()
            raise


class _Member:
    def __init__(self, ranks: ThreadRanks, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self._ranks = ranks

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        ranks = self._ranks
        ranks.given[self.rank] = values.clone()
        ranks.barrier.wait()
        total = sum(ranks.given[1:], start=ranks.given[0])
        ranks.barrier.wait()  # the next sum overwrites what is read here
        return values.copy_(total)
