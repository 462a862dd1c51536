"""Runs a measurement in processes of its own, and ends all of them whatever happens.

For peers that start processes, and sometimes hang or leave some behind. Whatever is started inside
carries a mark in its environment, so it is found even where it has left the process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]

INSIDE = "ASYNCRL_PEER_DIRECTORY"
"""Environment variable: the mark, and a directory that is removed at the end."""

TIDIERS = ("resource_tracker", "torch_shm_manager")
"""Processes that free shared memory once all others are gone."""

TIDY_S = 3.0
TAIL_LINES = 12


def run_apart(main: Callable[[Path], None], give_up: Callable[[str], None], limit_s: float) -> None:
    """Call `main` in a process of its own, and print the last line that it prints.

    Args:
        main: Measures; is given a directory for whatever it writes, and runs in it.
        give_up: Called, with the reason, where `main` printed no JSON within the limit.
        limit_s: From the start of the process to its end.
    """
    inside = os.environ.get(INSIDE)
    if inside:
        main(Path(inside))
        return
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as made:
        lines, reason = _lines_of(Path(made), limit_s)
    printed = [line for line in lines if line.startswith("{")]
    if printed:
        print(printed[-1], flush=True)
    else:
        give_up(reason)


def _lines_of(directory: Path, limit_s: float) -> tuple[list[str], str]:
    """Run this very command again; return what it printed, and why that may not be enough."""
    environment = {
        **os.environ,
        INSIDE: str(directory),
        "TMPDIR": str(directory),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),  # for `-m`
    }
    output, errors = directory / "stdout", directory / "stderr"
    reason = f"ended by us after {limit_s:g} s"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # the command that we are
            [sys.executable, *sys.orig_argv[1:]],
            cwd=directory,
            env=environment,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            reason = f"exit status {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_all(directory)
            process.wait()
    last = errors.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return output.read_text(encoding="utf-8").splitlines(), f"{reason}: {' / '.join(last)}"


def _end_all(directory: Path) -> None:
    for pid, command in _marked(directory):
        if not any(tidier in command for tidier in TIDIERS):
            _kill(pid)
    deadline = time.monotonic() + TIDY_S
    while any(_marked(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, _ in _marked(directory):
        _kill(pid)


def _marked(directory: Path) -> Iterator[tuple[int, str]]:
    mark = f"{INSIDE}={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name), (process / "cmdline").read_bytes().decode(errors="replace")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)
