"""Finding what actors have started, wherever it went: by a variable of its environment.

A launcher's helper process has the variable, so that all that descends from it has it too, in any
session and under any parent. It is a second net: while the helper lives it needs none, since it
adopts whatever its actors leave behind. Only what was started with an environment of its own, as
`env -i`, `sudo` or a container runtime do, slips through; and only Linux shows environments.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["kill_marked", "marked"]

_VARIABLE = "ASYNCRL_LAUNCHER"
_MOST_ROUNDS = 5


def marked(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """Return an environment that marks processes as belonging to a launcher's directory."""
    return {**environment, _VARIABLE: os.fspath(directory)}


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
