"""How many threads the learner computes with: the cores that other processes leave free.

Looks now and then. Torch's threads wait for each other by spinning: two of them on two idle cores
make a step of wide networks 1.4 times as fast, but beside one busy process they make it five times
as slow. Threads of narrow networks wait more than they compute, so short steps get one.

Knows nothing about torch, agents and processes: it gets the time of each step and sets a number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from asyncrl.core.agent import Agent
from asyncrl.core.recorder import Record
from asyncrl.core.torch_threads import (
    limit_of_user,
    set_torch_threads,
    torch_threads,
    treat_denormals_alike,
)
from asyncrl.core.types import Columns, Params
from asyncrl.metrics import limits
from asyncrl.metrics.stopwatch import Stopwatch
from asyncrl.metrics.system import Cores

_LOOK_S = 0.5
"""Seconds between two looks at the cores."""

_SHARE_S = 0.001
"""Work of an optimisation step, in seconds of one thread, for which one more thread is worth it."""

_SLACK, _KEEPS = 0.4, 0.6
"""Cores that may be missing to take one more thread, and to keep one."""

_WAITS, _WAITS_LONG = 0.1, 0.25
"""Shares of its time waiting for experience from which the learner takes no more threads, or
returns all but one."""


class Room(NamedTuple):
    """What other processes have left to the learner since the last reading."""

    cores: float
    """Cores that others left idle, or the learner used."""

    waits: float
    """Share of its time in which the learner waited for experience."""


class LearnerThreads:
    """Sets the number of threads, from 1 to `most`, by the cores that others leave free.

    Args:
        most: Maximum number of threads.
        room: Reads what other processes leave to the learner.
        apply: Sets the number of threads.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        most: int,
        room: Callable[[], Room],
        apply: Callable[[int], object] = set_torch_threads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.count = 1
        """Threads in use."""
        self._room, self._apply, self._clock = room, apply, clock
        self._shortest_s = float("inf")
        self._next_s = clock() + _LOOK_S

    def step(self, took_s: float) -> None:
        """Take the time of an optimisation step; now and then set another number of threads."""
        if self.most == 1:
            return
        self._shortest_s = min(self._shortest_s, took_s)
        if self._clock() < self._next_s:
            return
        count = self._fitting(self._room(), worth=int(self._shortest_s * self.count / _SHARE_S))
        if count != self.count:
            self._apply(count)
        self.count, self._shortest_s = count, float("inf")
        self._next_s = self._clock() + _LOOK_S

    def record(self) -> Record:
        """Return the number in use, if torch is loaded."""
        count = self.count if self.most > 1 else torch_threads()
        return {"learner/threads": float(count)} if count else {}

    def close(self) -> None:
        """Return all threads but one."""
        if self.most > 1:
            self.most = self.count = 1
            self._apply(1)

    def _fitting(self, room: Room, *, worth: int) -> int:
        if room.waits > _WAITS_LONG:
            return 1
        most = min(self.most, worth)
        if (more := min(most, int(room.cores + _SLACK))) > self.count:
            return more if room.waits < _WAITS else self.count
        return max(1, min(self.count, most, int(room.cores + _KEEPS)))


class RoomMeter:
    """Reads what other processes leave to the learner; `watch` is its thread's stopwatch."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._cores = Cores()
        self._last = self._read()

    def __call__(self) -> Room:
        before, self._last = self._last, self._read()
        passed_s = max(self._last.clock_s - before.clock_s, 1e-9)
        own_s = self._last.own_s - before.own_s
        busy_s = self._last.busy_s - before.busy_s
        return Room(
            cores=self._cores.share - max(busy_s - own_s, 0.0) / passed_s,
            waits=(self._last.waited_s - before.waited_s) / passed_s,
        )

    def _read(self) -> _Reading:
        clock_s = time.monotonic()
        return _Reading(
            clock_s,
            time.process_time(),
            self._cores.times(clock_s).busy_s,
            self._watch.totals().get("wait", 0.0),
        )


class _Reading(NamedTuple):
    clock_s: float
    own_s: float
    busy_s: float
    waited_s: float


_COMPARED_STEPS = 4
"""Enough to include the steps that update the policy."""


def alike(agent: Agent, batch: Columns, most: int) -> int:
    """Return the most threads that compute the same bits as one thread; do not change the agent.

    How operations are divided among threads depends on shapes only, so a few steps suffice.
    """
    before = agent.state()
    count, one = 1, _bits(agent, batch, before, 1)
    if not treat_denormals_alike(most):
        most = 1
    while count < most and _bits(agent, batch, before, min(2 * count, most)) == one:
        count = min(2 * count, most)
    set_torch_threads(1)
    agent.load_state(before)
    return count


def _bits(agent: Agent, batch: Columns, before: Params, threads: int) -> dict[str, bytes]:
    set_torch_threads(threads)
    agent.load_state(before)
    for _ in range(_COMPARED_STEPS):
        agent.opt(batch)
    return {name: array.tobytes() for name, array in agent.state().items()}


def most_threads(actors: int) -> int:
    """Return how many threads a learner beside this number of actors may use: a core for each.

    OMP_NUM_THREADS and limits on processes and threads may allow less.
    """
    allowed = [Cores().count, limit_of_user() or Cores().count]
    if room := limits.tasks():
        allowed.append(1 + room.left - limits.TASKS.of(actors))
    return max(1, min(allowed))
