"""Several learners as threads of one process, for tests of what they compute together."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from asyncrl.extensions.ranks.shared_sums import SharedSums, memory_bytes

Result = TypeVar("Result")

_DEADLINE_S = 60.0


class ThreadRanks:
    """The ranks of some threads, which sum as processes do; `members` are what each of them gets.

    If one of them fails, they sum no more.
    """

    def __init__(self, world: int, timeout_s: float = _DEADLINE_S) -> None:
        memory = mmap.mmap(-1, memory_bytes(world))
        ranks = range(world)
        ends = {(a, b): os.pipe() for a in ranks for b in ranks if a != b}
        self.members = [
            SharedSums(
                rank,
                memory,
                {b: (ends[b, rank][0], ends[rank, b][1]) for b in ranks if b != rank},
                timeout_s,
            )
            for rank in ranks
        ]

    def __del__(self) -> None:
        for member in self.members:
            member.close()

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Call one function for each rank at the same time; return their results.

        Waits for all of them. If one fails, its error is raised, not those of ranks that waited.
        """
        with ThreadPoolExecutor(len(calls)) as pool:
            guarded = zip(self.members, calls, strict=True)
            running = [pool.submit(partial(_guarded, *one)) for one in guarded]
        errors = [error for one in running if (error := one.exception()) is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, OSError)), errors[0])
        return [one.result() for one in running]


def _guarded(member: SharedSums, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except BaseException:
        member.close()
        raise
