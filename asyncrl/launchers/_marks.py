"""Finding what actors have started, wherever it went: by variables of its environment.

A launcher's helper process has the first, so that all that descends from it has it too, in any
session and under any parent. It is a second net: while the helper lives it needs none, since it
adopts whatever its actors leave behind. The second, which each actor has, tells the helper whose
such an orphan was. Only what was started with an environment of its own, as `env -i`, `sudo` or a
container runtime do, slips through, and past the second what was forked and runs no other program;
and only Linux shows environments.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_VARIABLE = "ASYNCRL_LAUNCHER"
_LIFE = "ASYNCRL_LIFE"
_MOST_ROUNDS = 5


def marked(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """Return an environment that marks processes as belonging to a launcher's directory."""
    return {**environment, _VARIABLE: os.fspath(directory)}


def life_mark(directory: Path, name: str) -> dict[str, str]:
    """Return what marks processes as belonging to one life of an actor."""
    return {_LIFE: f"{directory}/{name}"}


def life_of(pid: int, directory: Path) -> str | None:
    """Return the life that a process of a launcher's belongs to, or None if that is not known."""
    mark = os.fsencode(f"{_LIFE}={directory}/")
    with suppress(OSError):  # it is another user's
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(mark):
                return os.fsdecode(variable.removeprefix(mark))
    return None


def kill_marked(directory: Path) -> None:
    """Kill every process of this user that is marked with a directory, but not this one."""
    for _ in range(_MOST_ROUNDS):  # one of them may have started another meanwhile
        killed = sum(_kill_if_marked(entry, directory) for entry in Path("/proc").glob("[0-9]*"))
        if not killed:
            return


def _kill_if_marked(entry: Path, directory: Path) -> bool:
    pid = int(entry.name)
    if pid == os.getpid():
        return False
    with suppress(OSError):  # it is somebody else's, or has just ended
        process = os.pidfd_open(pid)
        try:
            # Read after the process was taken hold of: nobody else can have got its number.
            environment = (entry / "environ").read_bytes().split(b"\0")
            ours = entry.stat().st_uid == os.geteuid()
            if ours and os.fsencode(f"{_VARIABLE}={directory}") in environment:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
