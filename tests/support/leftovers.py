"""What tests have left: processes, and shared memory, where anybody may put something."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support import warm

# Python keeps these two for as long as the interpreter lives, and they end with it.
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")

_SHARED_MEMORY = Path("/dev/shm")


def children(*, recursive: bool = False) -> list[psutil.Process]:
    """Return the processes that tests have started, without those that Python keeps.

    What the warm process has forked for a test counts as started by the test.
    """
    me = psutil.Process()
    found: list[psutil.Process] = []
    for child in me.children():
        with suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if warm.MODULE in command:
                found += child.children(recursive=recursive)
            elif not any(name in command for name in _HELPERS):
                found += [child, *(child.children(recursive=True) if recursive else ())]
    return found


def shared_memory() -> set[Path]:
    """Return all there is, of whomever."""
    return {*_SHARED_MEMORY.glob("*")}


def added_shared_memory(before: AbstractSet[Path]) -> set[Path]:
    """Return new leftovers that may be those of tests.

    Leaves out what other users own, and what is in use by processes that no test has started.
    """
    added = shared_memory() - before
    if not added:
        return set()
    elsewhere = "".join(_maps_of_others())
    return {path for path in added if (place := _place(path)) and place not in elsewhere}


def _place(path: Path) -> str:
    """Return how memory maps show a file; the name of a semaphore is not in them."""
    try:
        seen = path.stat()
    except FileNotFoundError:  # it has just gone
        return ""
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}"
    return f" {device} {seen.st_ino} " if seen.st_uid == os.geteuid() else ""


def _maps_of_others() -> Iterator[str]:
    me = psutil.Process()
    family = {me, *me.children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has just ended, or is another user's
            # Whatever a test starts has the temporary directory of this run in its environment,
            # also if it has lost its parent.
            others = process.environ().get("TMPDIR") != tempfile.gettempdir()
            if others and process not in family:
                yield Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
