"""What runs in an actor's process, from start to exit. Does not know what the body does."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

import cloudpickle

from asyncrl.core.errors import describe_error
from asyncrl.fleet.local_files import (
    UNREPORTED_ERROR,
    IncarnationFiles,
    LogFile,
    ProgressBoard,
    take_body,
)
from asyncrl.fleet.process_name import set_title

STACKS_SIGNAL = signal.SIGUSR2
"""Asks an actor to write the stacks of its threads."""


def main(arguments: Sequence[str]) -> None:
    """Run an actor in a new interpreter."""
    directory, name, lifeline, body = arguments
    os._exit(live(IncarnationFiles(Path(directory), name), int(lifeline), int(body)))


def live(files: IncarnationFiles, lifeline: int, body: int) -> int:
    """Run the body and return the exit code; what it raised is in the files."""
    # Ctrl-C reaches the learner, which asks its actors to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Schedulers send their warning to all processes of a job; only the learner saves.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    began = False
    try:
        _prepare(files, lifeline)
        began = True
        title, peer, spec = cloudpickle.loads(take_body(body))
        set_title(title)
        spec.run(peer, ProgressBoard(files.path("progress")))
    except BaseException as error:
        # BaseException: `sys.exit` in an environment must be reported, too.
        return 1 if _report_error(files, error, began=began) else UNREPORTED_ERROR[began]
    finally:
        _flush()
    return 0


def _prepare(files: IncarnationFiles, lifeline: int) -> None:
    """Set up signals, output and the lifeline, whatever the body is."""
    _print_whole_lines()
    stacks = files.path("stacks").open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks)
    logging.getLogger().addHandler(LogFile(files.path("log")))
    with contextlib.suppress(OSError):
        _have_killed_with(lifeline)
    threading.Thread(target=_exit_with, args=(lifeline,), daemon=True).start()


def _print_whole_lines() -> None:
    """Write each printed line to the pipe of `local_output.py` at once, whatever it contains."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(  # noqa: SIM115  # open until the process exits
            number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        for place in (name, f"__{name}__"):
            setattr(sys, place, stream)


def _have_killed_with(lifeline: int) -> None:
    """Let the system do what `_exit_with` does, also to a stopped or blocked process.

    A thread cannot run while native code holds the interpreter's lock. Asynchronous I/O sends a
    signal on every event of a pipe, including its end; here SIGKILL to the whole group.
    """
    if sys.platform == "linux":
        # Opened again, since these settings belong to one opening, and actors share the other one.
        own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def _exit_with(lifeline: int) -> None:
    """Kill this process and all that it has started once the launcher's helper is gone.

    Only the helper holds the other end of this pipe, and it never writes: a read waits for its end.
    """
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _report_error(files: IncarnationFiles, error: BaseException, *, began: bool) -> bool:
    """Write the error to its file; return False and print it to stderr if that fails."""
    text = traceback.format_exc()
    try:
        files.write_error(describe_error(error), text, began=began)
    except OSError:
        sys.stderr.write(text)
        return False
    return True


def _flush() -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile):
            handler.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has exited
            stream.flush()
