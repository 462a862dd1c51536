"""Saves of checkpoints in which one system call fails, or kills the process that makes it.

`strace` brings the faults. A sweep goes over the system calls of saves that went well, and lets
each fail in a separate directory; what is then in that directory must be whole.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array

ROOT = Path(__file__).parents[2]
KILL, FULL, BROKEN = "signal=SIGKILL", "error=ENOSPC", "error=EIO"

_DEADLINE_S = 60.0
_CALLS = """openat mkdir mkdirat write pwrite64 writev fsync fdatasync rename renameat renameat2
    symlink symlinkat unlink unlinkat rmdir""".split()
_REFUSED = 7

# Forks a child for each line it reads, which stops, and saves checkpoints once it may go on.
_SAVER = f"""
import os, signal, sys
from pathlib import Path
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from tests.support.traced_saves import groups

def save(directory, names, value):
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        for name in names.split(","):
            Checkpointer(Path(directory), keep_last=1).save(name, groups(float(value)), {{}})
    except CheckpointError:
        os._exit({_REFUSED})
    except BaseException:
        os._exit(1)
    os._exit(0)

for line in sys.stdin:
    child = os.fork()
    if not child:
        save(*line.split())
    os.waitpid(child, os.WUNTRACED)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def groups(value: float = 1.0) -> dict[str, dict[str, Array]]:
    """Return what is saved: one number, everywhere."""
    return {
        "agent": {"step": np.array(3), "moments": np.full((2, 3), value, np.float32)},
        "model": {"weight": np.full(4, value)},
    }


def value_of(found: Checkpoint) -> float:
    """Return the number; NaN if two checkpoints are mixed up in this one."""
    value = float(found.groups["model"]["weight"][0])
    whole = np.all(found.groups["agent"]["moments"] == value)
    return value if whole and np.all(found.groups["model"]["weight"] == value) else np.nan


class TracedSaves:
    """Saves checkpoints in separate processes, under `strace`."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "strace.log"
        self._saver = subprocess.Popen(  # this module
            [sys.executable, "-c", _SAVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def save(self, directory: Path, names: str, value: float, *inject: str) -> int:
        """Return the exit code of saves that are traced and may be spoiled."""
        assert self._saver.stdin
        assert self._saver.stdout
        print(directory, names, value, file=self._saver.stdin, flush=True)
        child = int(self._saver.stdout.readline())
        arguments = [f"--trace={','.join('?' + call for call in _CALLS)}"]
        arguments += [f"--inject={expression}" for expression in inject]
        command = ["strace", "-y", "-o", str(self._log), "-p", str(child), *arguments]
        with subprocess.Popen(  # strace itself
            command, stderr=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stderr
            assert "attached" in (said := tracer.stderr.readline()), said
            os.kill(child, signal.SIGCONT)
            return int(self._saver.stdout.readline())

    def calls(self) -> list[tuple[str, str]]:
        """Return names and arguments of the calls of the last save."""
        found = re.findall(r"^(\w+)\((.*)\) += ", self._log.read_text(), re.MULTILINE)
        return [(name, arguments) for name, arguments in found if name in _CALLS]

    def close(self) -> None:
        """End the process that saves."""
        assert self._saver.stdin
        assert self._saver.stdout
        self._saver.stdin.close()
        self._saver.wait(_DEADLINE_S)
        self._saver.stdout.close()


@contextmanager
def traced_saves(directory: Path) -> Iterator[TracedSaves]:
    """Have saves traced, with their log in a directory."""
    saves = TracedSaves(directory)
    try:
        yield saves
    finally:
        saves.close()


def prepared(directory: Path) -> Path:
    """Return a directory with two checkpoints, and the leftovers of a save that was killed."""
    for name in ("5", "best"):
        Checkpointer(directory).save(name, groups(1), {})
    shutil.copytree(directory / "best", directory / ".asyncrl-leftover")
    return directory


def sweep(
    traced: TracedSaves, directory: Path, names: str, fault: str, most: int | None
) -> tuple[int, list[str]]:
    """Bring a fault to each system call of a row of saves, or to some of them.

    Returns how many of them the save did not get over, and what was not whole afterwards, of each.

    Args:
        traced: Saves them.
        directory: Where they are saved, each row in a folder that is deleted again.
        names: Of the checkpoints, with commas between them.
        fault: As `strace` takes it.
        most: How many system calls to take; all if None.
    """
    assert traced.save(prepared(directory / "well"), names, 2) == 0
    count = Counter(call for call, _ in traced.calls())
    points = [(call, i) for call, number in count.items() for i in range(1, number + 1)]
    felt, found = 0, []
    for at in np.unique(np.linspace(0, len(points) - 1, most or len(points), dtype=int)):
        call, index = points[at]
        spoiled = prepared(directory / str(at))
        code = traced.save(spoiled, names, 2, f"{call}:{fault}:when={index}")
        wrong = _what_is_wrong(spoiled, names.rsplit(",", maxsplit=1)[-1], code)
        if code not in ({-signal.SIGKILL} if fault == KILL else {0, _REFUSED}):
            wrong = f"ended in {code}"
        found.append(wrong and f"{fault} at {call} number {index} of {names}: {wrong}")
        felt += code != 0
        shutil.rmtree(spoiled)
    return felt, found


def _what_is_wrong(directory: Path, name: str, code: int) -> str:
    """See whether whatever is there is whole, and whether the next save goes well."""
    checkpointer = Checkpointer(directory, keep_last=1)
    try:
        values = {each: value_of(checkpointer.load(each)) for each in checkpointer.names()}
        newest = value_of(checkpointer.load_latest())
        checkpointer.save(name, groups(3), {})
        after = value_of(checkpointer.load(name))
    except CheckpointError as error:
        return str(error)
    if "best" not in values or not {*values.values(), newest} <= {1, 2}:
        return f"found {values}"
    if code == 0 and values[name] != 2:
        return f"saved 2 as {name}, found {values[name]}"
    if after != 3:
        return f"saved 3 as {name} afterwards, found {after}"
    hidden = [path for path in directory.iterdir() if path.name.startswith(".")]
    left = len(hidden) - len(checkpointer.names())
    return f"{left} hidden files are left over" if left else ""
