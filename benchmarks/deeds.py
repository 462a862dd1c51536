"""What an environment may do to its process when it is to fail.

Loads the standard library alone: it is used where asyncrl is not installed, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from typing import NoReturn

CAUSE = "the wheel came off"
"""What an environment says when it raises."""


def kill() -> None:
    """End the process as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> NoReturn:
    """Raise."""
    raise ValueError(CAUSE)


def sleep() -> None:
    """Wait for what never comes; other threads go on."""
    threading.Event().wait()


def hold() -> None:
    """Run native code that never gives the interpreter's lock back."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def stop() -> None:
    """Stop the whole process, as a debugger does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def bear() -> None:
    """Start two processes, one of them in a session of its own, and go on."""
    for apart in (False, True):
        subprocess.Popen(["sleep", "3600"], start_new_session=apart)  # noqa: S607
