"""The command line in a process of its own: from the warm one, or the installed `asyncrl`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import warm

COMMAND = str(Path(sys.executable).with_name("asyncrl"))

# A run that learns a little and ends after two or three seconds, most of which goes into imports.
TINY = """
    --actors 1 --envs-per-actor 2 --segment.length 4 --limiter.min-size 64 --replay.capacity 5000
    --trainer.batch-size 16 --trainer.books.eval-interval-opt-steps 100
    --trainer.books.record-interval-s 0.1 --evaluation.play.episodes 3 --agent.hidden 16
""".split()

_DEADLINE_S = 60.0


def run(*args: str, cwd: Path, installed: bool = False) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end."""
    if warm.AVAILABLE and not installed:
        return warm.run("asyncrl", args, cwd=cwd, timeout_s=_DEADLINE_S)
    return subprocess.run(
        [COMMAND, *args],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )


@contextmanager
def started(*args: str, cwd: Path) -> Iterator[subprocess.Popen[str] | warm.Program]:
    """Start one command line; whatever happens in the block, it has ended afterwards."""
    if warm.AVAILABLE:
        with warm.started("asyncrl", args, cwd=cwd) as program:
            yield program
        return
    with subprocess.Popen(
        [COMMAND, *args],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
