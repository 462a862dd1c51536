"""Runs a command apart from everything else, and ends all that it has started, whatever happens.

Peers start processes, sometimes hang, and may leave some behind. Whatever a command starts carries
a mark in its environment, so it is found even where it has left the process group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]

MARK = "ASYNCRL_PEER_DIRECTORY"
"""Environment variable by which all processes of a command are found."""

_TIDIERS = ("resource_tracker", "torch_shm_manager")
"""Processes that free shared memory once all others are gone."""

_TIDY_S = 3.0
_LOOK_S = 0.02


def python_of(venv: str = "") -> Path:
    """Return the Python of an environment below .peers, which may be missing; else our own."""
    return ROOT / ".peers" / venv / "bin" / "python" if venv else Path(sys.executable)


@contextlib.contextmanager
def started(
    command: Sequence[str], directory: Path, out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a directory for its files; at exit, kill all that it started."""
    environment = {
        **os.environ,
        MARK: str(directory),
        "TMPDIR": str(directory),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(  # noqa: S603  # our own scripts
        command, cwd=directory, env=environment, stdout=out, stderr=err, start_new_session=True
    )
    try:
        yield process
    finally:
        end_all(process, directory)


def run_apart(command: Sequence[str], limit_s: float) -> tuple[dict[str, Any], str]:
    """Return the JSON in the last line that a command prints, or the error."""
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        output, errors = directory / "stdout", directory / "stderr"
        with (
            output.open("wb") as out,
            errors.open("wb") as err,
            started(command, directory, out, err) as process,
        ):
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return {}, f"did not end within {limit_s:g} s"
        lines = [line for line in _lines(output) if line.startswith("{")]
        if code == 0 and lines:
            printed: dict[str, Any] = json.loads(lines[-1])
            return printed, ""
        said = _lines(errors) or ["nothing"]
        return {}, f"ended with {code}, saying: {said[-1][:200]}"


def end_all(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Kill a command's processes; those that clean up shared memory get time to do so."""
    for pid, name in _marked(directory):
        if not any(tidier in name for tidier in _TIDIERS):
            _kill(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # where there is no /proc
    process.wait()
    deadline = time.monotonic() + _TIDY_S
    while any(_marked(directory)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    while left := list(_marked(directory)):
        for pid, _ in left:
            _kill(pid)
        time.sleep(_LOOK_S)


def end_in_order() -> None:
    """Let SIGTERM end this process as an exception does, so that it ends what it has started."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(1)


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _marked(directory: Path) -> Iterator[tuple[int, str]]:
    """Yield the live processes of a command and their command lines."""
    mark = f"{MARK}={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name), (process / "cmdline").read_bytes().decode(errors="replace")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
