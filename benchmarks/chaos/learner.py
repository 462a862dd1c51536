"""A learner in a separate process, for entries that kill or stop it.

Everything it starts carries a mark in its environment, by which leftover processes are found; its
/dev/shm is a separate directory where the machine allows that.

python -m benchmarks.chaos.learner DIRECTORY ACTORS
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Incarnations
from benchmarks.machines import machine, no_mounts
from tests.support.helpers import wait_until as wait_until

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # that is where it is
_STATUS = "status"
_CAPACITY = 4_000


@dataclass(slots=True)
class Learner:
    """A run in another process, with environments of `worlds.Numbered`."""

    directory: Path
    actors: int
    mark: str = ""
    process: subprocess.Popen[str] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def pid(self) -> int:
        """Of the learner itself."""
        assert self.process
        return self.process.pid

    @property
    def shared_memory(self) -> Path:
        """Where its /dev/shm is."""
        return SHARED_MEMORY if no_mounts() else self.directory / "shm"

    @property
    def incarnations(self) -> Incarnations:
        """What its environments leave word of."""
        return Incarnations(self.directory / "incarnations")

    @property
    def stored(self) -> int:
        """Transitions that it has stored so far."""
        with (self.directory / _STATUS).open("rb") as file:
            return int.from_bytes(file.read(8), sys.byteorder)

    def __enter__(self) -> Self:
        """Start it."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / "shm").mkdir(exist_ok=True)
        (self.directory / _STATUS).write_bytes(bytes(8))
        own = () if no_mounts() else ("own shared memory",)
        on = self._stack.enter_context(machine(self.directory, *own))
        self.mark = on.mark
        command = [sys.executable, "-m", "benchmarks.chaos.learner", str(self.directory)]
        command += [str(self.actors)]
        self.process = on.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill every process that it started."""
        assert self.process
        self._stack.close()
        self.process.communicate(timeout=DEADLINE_S)

    def wait_for_steps(self) -> None:
        """Wait until all its actors make steps and it stores them."""
        incarnations = self.incarnations

        def runs() -> bool:
            assert self.process
            if self.process.poll() is not None:
                raise RuntimeError(f"the learner has ended: {self.process.communicate()[1]}")
            return len(incarnations.living()) == self.actors and self.stored > 0

        wait_until(runs, DEADLINE_S, "a learner's actors")


def _while_watched(stage: Stage, directory: Path) -> Iterator[None]:
    """Train and report what is stored, until the reader is gone."""
    with (directory / _STATUS).open("r+b") as file:
        cell = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    entry = os.getppid()
    while os.getppid() == entry:
        cell[0] = stage.audit.total()
        yield


def main() -> None:
    """Be the learner."""
    directory, actors = Path(sys.argv[1]), int(sys.argv[2])
    stage = Stage(
        directory, configure=lambda config: replace(config, actors=actors), capacity=_CAPACITY
    )
    stage.play(lambda stage: _while_watched(stage, directory))


if __name__ == "__main__":
    main()
