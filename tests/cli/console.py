"""The command line, in a separate process."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support import warm

COMMAND = str(Path(sys.executable).with_name("asyncrl"))

# A run that learns a little and ends after two or three seconds, most of which goes into imports.
TINY = """
    --actors 1 --envs-per-actor 2 --segment.length 4 --limiter.min-size 64 --replay.capacity 5000
    --trainer.batch-size 16 --evaluate.interval-opt-steps 100
    --record.interval-s 0.1 --evaluate.play.episodes 3 --agent.hidden 16
""".split()

SLOW = [*TINY, "--env", "tests.support.fake_envs:SlowEnv"]
"""The same for a run that continues until the test ends it."""

_DEADLINE_S = 60.0


def misbehaving_env(do: str, **more: object) -> list[str]:
    """Return the flags for an environment that does something odd."""
    settings = [str(part) for item in {"do": do, **more}.items() for part in item]
    return ["--env", "benchmarks.misbehaving_env:MisbehavingEnv", "--env-kwargs", *settings]


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end."""
    return warm.run("asyncrl", args, cwd=cwd, timeout_s=_DEADLINE_S)


def started(*args: str, cwd: Path) -> AbstractContextManager[warm.Process]:
    """Start one command line; whatever happens in the block, it has ended afterwards."""
    return warm.started("asyncrl", args, cwd=cwd)


def hears(pid: int, number: int = signal.SIGTERM) -> bool:
    """Return whether a process has a handler, as commands have from their first moment.

    Only Linux shows this.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)
