"""Environments that fail in one way or another. Little is imported here: actors load it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from asyncrl.core.env import EnvStep
from asyncrl.core.types import Array
from benchmarks import faults_in_process
from tests.support.fakes import CountingBatch
from tests.support.helpers import in_actor, wait_until

DEADLINE_S = 60.0


class TwoArguments(Exception):
    """Cannot be made from its message alone, and not be pickled either."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{why} at {where}")
        self.lock = threading.Lock()


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit("even that")


def _raises(error: BaseException) -> NoReturn:
    raise error


FALLS: Mapping[str, Callable[[], object]] = {
    **faults_in_process.PROCESS_FAULTS,
    "two lines": lambda: _raises(ValueError("the wheel\ncame off")),
    "two arguments": lambda: _raises(TwoArguments("the hub", "rust")),
    "base": lambda: _raises(KeyboardInterrupt("no one's")),
    "speechless": lambda: _raises(_Speechless()),
    "deadly": lambda: _raises(_Deadly()),
    "group": lambda: _raises(ExceptionGroup("both", [ValueError("a"), OSError("b")])),
}


class Falling(CountingBatch):
    """Fails in its own way after some steps; its episodes may be without an end."""

    def __init__(self, way: str, after: int = 30, *, length: int = 3) -> None:
        super().__init__(length=length)
        self.way, self._left = way, after

    def step(self, action: Array) -> EnvStep:
        self._left -= 1
        if self._left < 0:
            FALLS[self.way]()
        return super().step(action)


@dataclass
class FallsInActors:
    """Makes environments that fall, each in one way of several and each way once.

    Never outside of actors, and no more once all ways have been taken.
    """

    notes: Path
    ways: tuple[str, ...]

    def __call__(self) -> CountingBatch:
        if in_actor():
            for way in self.ways:
                try:
                    (self.notes / way).touch(exist_ok=False)
                except FileExistsError:
                    continue
                return Falling(way)
        return CountingBatch()


class Leaking(CountingBatch):
    """Keeps 5 MB of each episode; an episode takes about 50 ms."""

    def __init__(self) -> None:
        super().__init__(length=10)
        self._kept: list[bytes] = []

    def step(self, action: Array) -> EnvStep:
        time.sleep(0.005)
        outcome = super().step(action)
        self._kept += [b"x" * 5_000_000 for _ in outcome.terminated.nonzero()[0]]
        return outcome


class SlowInOne(FallsInActors):
    """Makes one environment whose tenth step lasts until it is released, and quick ones."""

    def __init__(self, notes: Path) -> None:
        super().__init__(notes, ("claimed",))

    def __call__(self) -> CountingBatch:
        made = super().__call__()
        return _Slow(self.notes) if isinstance(made, Falling) else made


class _Slow(CountingBatch):
    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._notes, self._made = notes, 0

    def step(self, action: Array) -> EnvStep:
        self._made += 1
        if self._made == 10:
            (self._notes / "slow").touch()
            wait_until((self._notes / "release").exists, DEADLINE_S, "the others to go on")
        return super().step(action)


class JumpsInTime(CountingBatch):
    """Sets the clock of its process at each step."""

    def step(self, action: Array) -> EnvStep:
        time_of_day = random.uniform(-1e9, 1e10)
        time.time = lambda: time_of_day
        return super().step(action)
