"""Faults of user code in its process: crashes, hangs, exceptions, output, changed state.

Imports only the standard library: it also runs where asyncrl is not installed.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

CAUSE = "the wheel came off"
"""What an environment says when it raises."""

LOST = "half a \udcff letter"
"""A message that no encoding can represent."""

SLOW_S = 1.5
LEAK_BYTES = 5 << 20
_leaked: list[bytes] = []


def kill() -> None:
    """Kill the process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(words: str = CAUSE) -> NoReturn:
    """Raise."""
    raise ValueError(words)


def sleep() -> None:
    """Wait forever; other threads continue."""
    threading.Event().wait()


def hold() -> None:
    """Run native code that never releases the GIL."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def stop() -> None:
    """Stop the whole process, as a debugger does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def spawn_children() -> None:
    """Start two processes, one of them in a separate session, and continue."""
    for apart in (False, True):
        subprocess.Popen(["sleep", "3600"], start_new_session=apart)  # noqa: S607


def leave_thread() -> None:
    """Start a thread that never ends and that the interpreter waits for."""
    threading.Thread(target=sleep).start()


def ignore_signals() -> None:
    """Ignore the signals that end or save a run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def replace_output() -> None:
    """Replace what the interpreter writes to."""
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="ascii")  # noqa: SIM115


def fork() -> None:
    """Fork a child that shares all files and exits much later."""
    if not os.fork():
        time.sleep(3600)
        os._exit(0)


def leak() -> None:
    """Keep some memory each time."""
    _leaked.append(os.urandom(1) * LEAK_BYTES)


PROCESS_FAULTS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "nothing": lambda: None,
        # the process ends
        "kill": kill,
        "segfault": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "exit-0": lambda: os._exit(0),
        "exit-3": lambda: os._exit(3),
        "sys-exit": lambda: sys.exit(0),
        # an exception
        "raise": fail,
        "raise-lost": lambda: fail(LOST),
        "raise-wide": lambda: fail("the wheel ist müde"),
        # no progress
        "sleep": sleep,
        "hold": hold,
        "stop": stop,
        "slow": lambda: time.sleep(SLOW_S),
        # it leaves something behind
        "spawn-children": spawn_children,
        "fork": fork,
        "thread": leave_thread,
        "leak": leak,
        # it changes the state of the process
        "chdir": lambda: os.chdir("/"),
        "ignore-signals": ignore_signals,
        "umask": lambda: os.umask(0o777),
        "close-files": lambda: os.closerange(3, 64),
        "no-output": replace_output,
        "nice": lambda: os.nice(5),
        # output
        "print": lambda: sys.stdout.write("a word of the environment\n"),
        "print-native": lambda: os.write(1, b"a native word of the environment\n"),
    }
)
"""Name -> what it does, with no argument."""
