"""How many threads the learner computes with: the number that makes its optimisation steps fastest.

Measures and predicts nothing: it alternates between steps with one number of threads and with
another one. Torch's threads wait for each other by spinning. Two of them on two idle cores make a
step of wide networks 1.4 times as fast; beside one busy process they make it five times as slow.

Knows nothing about torch, agents and processes: it gets the time of each step and sets a number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
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

_WINDOW_S = 0.05
_WINDOW_STEPS = 3
"""Minimum steps of a measured mean; it continues until they have taken `_WINDOW_S`."""

_TURNS = 3
_GAIN = 0.9
"""Maximum time relative to a step with half the threads; above it the cores are not worth it."""

_KEEPS = 0.95
"""The same for threads that are in use already, so that the number does not oscillate."""

_PLAIN = 2.0
"""If a step takes this many times as long, the comparison ends early."""

_SLOWED = 1.3
"""If steps with several threads take this many times as long, fewer are compared at once."""

_SLOW_WINDOWS = 3
"""Slow windows in a row before that: a shared machine delays single steps all the time."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SLACK = 0.4
"""Cores: more threads are tried if at most this is missing, and fewer are taken from 0.2 more
on."""

_WAITS, _WAITS_LONG = 0.1, 0.25
"""Shares of its time waiting for experience from which the learner takes no more threads, or
returns some."""


class Room(NamedTuple):
    """What other processes have left to the learner since the last reading."""

    cores: float
    """Cores that others left idle, or the learner used."""

    waits: float
    """Share of its time in which the learner waited for experience."""


class ThreadTuner:
    """Chooses a number of threads, from 1 to `most`, by the times of optimisation steps.

    Args:
        most: Maximum number of threads to try.
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
        """Threads in use, except while other numbers are tried."""
        self._room, self._apply, self._clock = room, apply, clock
        self._applied = 1
        self._sum_s, self._steps = 0.0, 0
        self._is_first = True
        self._search = self._searching()
        next(self._search)

    def step(self, took_s: float) -> None:
        """Take the time of an optimisation step; sometimes set another number of threads."""
        if self.most == 1:
            return
        if self._is_first:  # it starts threads, or finds cold caches
            self._is_first = False
            return
        self._sum_s += took_s
        self._steps += 1
        if self._steps < _WINDOW_STEPS or self._sum_s < _WINDOW_S:
            return
        mean_s, self._sum_s, self._steps = self._sum_s / self._steps, 0.0, 0
        self._use(self._search.send(mean_s))

    def record(self) -> Record:
        """Return the number in use, if torch is loaded."""
        count = self.count if self.most > 1 else torch_threads()
        return {"learner/threads": float(count)} if count else {}

    def close(self) -> None:
        """Return all threads but one."""
        if self.most > 1:
            self.most = self.count = 1
            self._use(1)

    def _use(self, count: int) -> None:
        if count != self._applied:
            self._applied, self._is_first = count, True
            self._apply(count)

    def _searching(self) -> Generator[int, float, None]:
        """Yield the threads of each window; take the mean time of a step in it."""
        pause_s, up = _FIRST_PAUSE_S, True
        usual_s = yield self.count
        while True:
            usual_s = yield from self._hold(pause_s, usual_s)
            other = self._other(self._room(), up=up)
            if other == self.count:
                continue
            before = self.count
            self.count, usual_s = yield from self._compare(other)
            changed = self.count != before
            pause_s = _FIRST_PAUSE_S if changed else min(2 * pause_s, _LONGEST_PAUSE_S)
            up = not up

    def _hold(self, pause_s: float, usual_s: float) -> Generator[int, float, float]:
        """Keep the number for a while, or until steps become slower; return the usual time."""
        until_s, slow = self._clock() + pause_s, 0
        while slow < _SLOW_WINDOWS and self._clock() < until_s:
            mean_s = yield self.count
            if self.count > 1 and mean_s > _SLOWED * usual_s:
                slow += 1
            else:
                slow = 0
                usual_s += 0.1 * (mean_s - usual_s)
        return usual_s

    def _other(self, room: Room, *, up: bool) -> int:
        """Return the number to compare with, or the number in use.

        Threads that lack cores, or that wait, are returned without a comparison.
        """
        while self.count > 1 and (
            room.cores < self.count - _SLACK - 0.2 or room.waits > _WAITS_LONG
        ):
            self.count //= 2
        more, fewer = min(2 * self.count, self.most), max(1, self.count // 2)
        may_rise = room.cores >= more - _SLACK and room.waits < _WAITS
        return more if may_rise and (up or fewer == self.count) and more > self.count else fewer

    def _compare(self, other: int) -> Generator[int, float, tuple[int, float]]:
        """Measure both numbers alternately; return the better one and its usual time."""
        fewer, more = sorted((self.count, other))
        times: dict[int, list[float]] = {fewer: [], more: []}
        for _ in range(_TURNS):
            for count in (fewer, more):
                times[count].append((yield count))
            if times[more][-1] > _PLAIN * times[fewer][-1]:
                return fewer, times[fewer][-1]
        usual_s = {count: statistics.median(times[count]) for count in times}
        worth = _GAIN if more == other else _KEEPS
        better = more if usual_s[more] < worth * usual_s[fewer] else fewer
        return better, usual_s[better]


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
