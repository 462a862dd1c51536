"""What actors do in the tests of launchers."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from asyncrl.core.launcher import Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.fleet.local import pickled
from benchmarks import faults_in_process


@dataclass(frozen=True)
class Runs(Spec):
    """Runs a function, which it carries past the network to a host, too."""

    body: Callable[[Progress], object]

    def run(self, peer: Peer, progress: Progress) -> None:
        self.body(progress)

    def instructions(self) -> dict[str, Any]:
        return {"spec": base64.b64encode(pickled(self)).decode()}


def returns(progress: Progress) -> None:
    progress.turn(7)
    progress.turn(9)


def raises(progress: Progress) -> NoReturn:
    progress.turn(3)
    raise ValueError("the lid\nis shut")


def leaves(_: Progress) -> NoReturn:
    os._exit(3)


def exits_system(_: Progress) -> NoReturn:
    sys.exit("enough")


def crashes(_: Progress) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def waits(progress: Progress) -> None:
    progress.waiting(True)
    progress.turn(5)
    forever()


def takes_turns(progress: Progress) -> None:
    for turn in itertools.count():
        progress.turn(turn)
        time.sleep(0.01)


def finishes(progress: Progress) -> None:
    while not progress.finishing():
        progress.turn(1)
        time.sleep(0.01)
    progress.turn(2)


def reports_and_waits(progress: Progress, number: int = 0) -> None:
    progress.turn(number)
    forever()


def eats_and_waits(_: Progress) -> None:
    held = b"x" * (100 << 20)
    forever()
    del held


def holds_the_gil(progress: Progress) -> None:
    progress.turn(0)
    faults_in_process.hold()


def forever() -> None:
    while True:
        time.sleep(0.05)


def logs_and_prints(progress: Progress) -> None:
    log = logging.getLogger("tests.bodies")
    log.info("not meant to be read")
    log.warning("the lid\nis %s", "loose")
    print("a line\nand \udc80 another")  # noqa: T201  # as environments do
    os.write(1, b"from native code\n")
    subprocess.run(["sh", "-c", "echo of a child"], check=True)
    os.write(2, b"last words")
    progress.turn(0)
    os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """Leaves notes in a file, which is there once it is complete."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.draft = notes.with_suffix(".draft")

    def write(self, *pids: int) -> None:
        self.draft.write_text(" ".join(map(str, pids)))
        self.draft.rename(self.notes)


class StartsHelpers(Notes):
    """Starts a process in its own group and one in another session, and notes their numbers."""

    def __call__(self, progress: Progress) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        near = subprocess.Popen(command)
        far = subprocess.Popen(command, start_new_session=True)
        self.write(os.getpid(), near.pid, far.pid)
        progress.turn(0)
        forever()


class LeavesOrphan(Notes):
    """Starts a process in another session that loses its parent at once, and notes its number."""

    def __call__(self, progress: Progress) -> None:
        command = f"sleep 600 & echo $! > {self.draft}; mv {self.draft} {self.notes}"
        subprocess.run(["sh", "-c", command], start_new_session=True, check=True)
        progress.turn(0)
        forever()


class ForksAway(Notes):
    """Forks a process into another session, and notes its number: one that loads nothing again."""

    def __call__(self, progress: Progress) -> None:
        if not os.fork():
            os.setsid()
            self.write(os.getpid())
            forever()
        progress.turn(0)
        forever()


class NotesSurroundings(Notes):
    """Writes down what an actor sees of the process it runs in."""

    def __call__(self, progress: Progress) -> None:
        handler = signal.getsignal(signal.SIGINT)
        self.notes.write_text(
            "\n".join(
                [
                    f"threads {os.environ['OMP_NUM_THREADS']}",
                    f"cwd {Path.cwd()}",
                    f"leads its group {os.getpgrp() == os.getpid()}",
                    f"ignores ctrl-c {handler == signal.SIG_IGN}",
                    f"main {sys.modules['__main__'].__dict__.get('__file__')}",
                ]
            )
        )


def descriptors(pid: int) -> list[str]:
    """Return what a process's descriptors are of."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the one of this look, or one just closed
            links.append(str(entry.readlink()))
    return links


class LooksWhileUnpickled(Notes):
    """Writes down the process's descriptors while its function is unpickled."""

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ |= state
        self.notes.write_text(json.dumps(descriptors(os.getpid())))

    def __call__(self, progress: Progress) -> None:
        progress.turn(0)
