"""Environments that count their steps and fail on request.

Every incarnation of an actor has a row in a file: its process, its number of steps, the requested
fault and when it happened. The row outlives a kill, so the counts of a run can be compared with
what really happened.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.types import Array
from benchmarks import faults_in_process

SCALE = 2.0**-20
"""Observations are whole numbers times this, which float32 holds exactly up to 16 million."""

_CELLS = 4
_MAX_INCARNATIONS = 1 << 16


class Order(IntEnum):
    """What an environment can be made to do in its next step."""

    NONE = 0
    SLEEP = 1
    HOLD = 2
    """Native code that never releases the GIL."""

    STOP = 3
    RAISE = 4
    SPAWN = 5
    """Start two processes, one of them in a separate session, and continue."""


_FAULTS: Mapping[Order, Callable[[], object]] = {
    Order.SLEEP: faults_in_process.sleep,
    Order.HOLD: faults_in_process.hold,
    Order.STOP: faults_in_process.stop,
    Order.RAISE: faults_in_process.fail,
    Order.SPAWN: faults_in_process.spawn_children,
}


class Incarnation:
    """Progress and orders of one incarnation of an actor, in memory shared by two processes."""

    def __init__(self, number: int, cells: Array) -> None:
        self.number = number
        self._cells = cells

    @property
    def pid(self) -> int:
        """Its process; 0 for a moment while it begins."""
        return int(self._cells[0])

    @property
    def steps(self) -> int:
        """Steps that each of its environments has made."""
        return int(self._cells[1])

    @property
    def order(self) -> Order:
        """What it was asked to do."""
        return Order(int(self._cells[2]))

    @order.setter
    def order(self, order: Order) -> None:
        self._cells[2] = order

    @property
    def obeyed_at(self) -> float:
        """When it began to do so, by the machine's monotonic clock; 0 if it has not."""
        return float(self._cells[3])

    @property
    def alive(self) -> bool:
        """Whether its process is there, and is no corpse."""
        try:
            process = psutil.Process(self.pid)
            return self.pid > 0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def begin(self) -> None:
        """Say which process this is."""
        self._cells[0] = os.getpid()

    def on_step(self) -> None:
        """Count a step, after doing what was ordered."""
        if self._cells[2]:
            order, self.order = self.order, Order.NONE
            self._cells[3] = time.monotonic()
            _FAULTS[order]()
        self._cells[1] += 1


class Incarnations:
    """All incarnations that have begun: one file, mapped into the memory of each process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("a+b") as file:
            if not os.fstat(file.fileno()).st_size:
                file.truncate(8 * _CELLS * _MAX_INCARNATIONS)
            self._cells = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64)
        self._dead: set[int] = set()

    def begin(self) -> Incarnation:
        """Take the next free number, for this process."""
        with self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._cells[0] += 1
            incarnation = self._row(int(self._cells[0]))
        incarnation.begin()
        return incarnation

    def all(self) -> list[Incarnation]:
        """Return those of actors, which are other processes than this."""
        found = (self._row(number) for number in range(1, int(self._cells[0]) + 1))
        return [one for one in found if one.pid not in {0, os.getpid()}]

    def living(self) -> list[Incarnation]:
        """Return those that have made a step and whose process is there."""
        found = [one for one in self.all() if one.number not in self._dead]
        self._dead.update(one.number for one in found if not one.alive)
        return [one for one in found if one.steps and one.number not in self._dead]

    def _row(self, number: int) -> Incarnation:
        return Incarnation(number, self._cells[number * _CELLS : (number + 1) * _CELLS])


@dataclass(frozen=True, slots=True)
class Numbered:
    """Makes environments whose observations name incarnation, environment and step."""

    incarnations: Path = Path("incarnations")
    n_envs: int = 4
    pace_s: float = 0.001
    """A step takes at least this long, as in a remote simulator."""

    width: int = 0
    """Zeros in an observation, beside the three numbers."""

    def __call__(self) -> NumberedBatch:
        """Begin an incarnation."""
        return NumberedBatch(self)


class NumberedBatch:
    """Environments whose episodes have no end."""

    def __init__(self, made_by: Numbered) -> None:
        width = 3 + made_by.width
        bound = np.full(width, np.inf)
        self.spec = EnvSpec(BoxSpec((width,), "float32", -bound, bound), DiscreteSpec(2))
        self.n_envs = made_by.n_envs
        self._incarnations = made_by.incarnations
        self._pace_s = made_by.pace_s
        self._no = np.zeros(self.n_envs, bool)
        self._obs = np.zeros((self.n_envs, width), np.float32)
        self._obs[:, 1] = np.arange(self.n_envs) * SCALE

    @cached_property
    def incarnation(self) -> Incarnation:
        """Begins with the first reset or step, not where only spaces are read."""
        incarnation = Incarnations(self._incarnations).begin()
        self._obs[:, 0] = incarnation.number * SCALE
        return incarnation

    def reset(self, seed: int) -> Array:
        """Begin with step 0."""
        del seed
        self.incarnation  # noqa: B018  # begins now
        return self._obs.copy()

    def step(self, action: Array) -> EnvStep:
        """Count."""
        if self._pace_s:
            time.sleep(self._pace_s)
        self.incarnation.on_step()
        self._obs[:, 2] += SCALE
        obs = self._obs.copy()
        return EnvStep(obs, np.zeros(len(action), np.float32), self._no, self._no, obs)

    def close(self) -> None:
        """Leave the row as it is: it is read later."""
