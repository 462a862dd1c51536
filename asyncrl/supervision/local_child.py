"""What runs in an actor's own process, from its first line to its exit."""

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
from asyncrl.supervision.local_files import IncarnationFiles, LogFile, ProgressBoard, take_body
from asyncrl.supervision.process_name import set_title

STACKS_SIGNAL = signal.SIGUSR2
"""Asks an actor to write down where its threads stand."""

UNTOLD = (113, 114)
"""Exit codes of one that could not write its error into its file: before it began, and after."""


def main(arguments: Sequence[str]) -> None:
    """Be an actor in a fresh interpreter."""
    directory, name, lifeline, body = arguments
    os._exit(live(IncarnationFiles(Path(directory), name), int(lifeline), int(body)))


def live(files: IncarnationFiles, lifeline: int, body: int) -> int:
    """Run the body, and return the exit code; what it raised is in the files."""
    # The learner hears of Ctrl-C, and tells its actors to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Schedulers send their warning to all processes of a job; it is the learner that saves.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    began = False
    try:
        _prepare(files, lifeline)
        began = True
        title, run = cloudpickle.loads(take_body(body))
        set_title(title)
        run(ProgressBoard(files.path("progress")))
    except BaseException as error:
        # BaseException: `sys.exit` in an environment is no reason to end without a word.
        return 1 if _tell(files, error, began=began) else UNTOLD[began]
    finally:
        _flush()
    return 0


def _prepare(files: IncarnationFiles, lifeline: int) -> None:
    """Take from the system what an actor needs, whatever it is to run."""
    _print_whole_lines()
    stacks = files.path("stacks").open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks)
    logging.getLogger().addHandler(LogFile(files.path("log")))
    with contextlib.suppress(OSError):
        _have_ended_with(lifeline)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _print_whole_lines() -> None:
    """Write each printed line to the pipe of `local_output.py` at once, whatever is in it."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(  # noqa: SIM115  # for the life of the process
            number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        for place in (name, f"__{name}__"):
            setattr(sys, place, stream)


def _have_ended_with(lifeline: int) -> None:
    """Have the system do what `_end_with` does, also to a process that is stopped or held up.

    As a thread cannot run while native code holds the interpreter's lock. Asynchronous I/O signals
    what happens to a pipe, its end included; here to the whole group, and in no uncertain way.
    """
    if sys.platform == "linux":
        # Opened anew, since the settings belong to an opening, and actors share the other one.
        own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def _end_with(lifeline: int) -> None:
    """Kill this process and all it has started once the launcher's server is gone.

    Only the server holds the other end of this pipe, and it never writes: to read is to wait for
    its end.
    """
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _tell(files: IncarnationFiles, error: BaseException, *, began: bool) -> bool:
    """Leave the error in its file; else, on a full disk for instance, on stderr, and return so."""
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
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
