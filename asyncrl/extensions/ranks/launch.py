"""Starts several learners of one command, and waits for them.

`--learners K` starts K processes of the same command, as `torchrun --nproc-per-node K -m asyncrl`
does, and passes signals on to them.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from asyncrl.core.interrupter import Interrupter
from asyncrl.extensions.ranks.lockstep import STORE_FILE, process_state
from asyncrl.run.signals import Interrupted, interrupting

logger = logging.getLogger(__name__)

FLAG = "--learners"
_POLL_S = 0.05
_OTHERS_S = 90.0
"""Seconds in which the other learners must end after one has failed: they save a checkpoint."""


def learners_in(args: Sequence[str]) -> int:
    """Return how many learners a command line must start: 1 in one that was started as a rank."""
    if "RANK" in os.environ:
        return 1
    given = "1"
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == FLAG:
            given = value if equals else next(iter(args[i + 1 :]), "")
    return int(given) if given.isdecimal() else 1


def start_learners(world: int, args: Sequence[str]) -> int:
    """Run a command line in `world` processes until all have ended; return the exit code."""
    interrupter = Interrupter()
    with ExitStack() as undo:
        private = undo.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-learners-"))
        interrupted = undo.enter_context(interrupting(interrupter))
        interrupted.disarm()  # the second signal kills the learners, and the rest is tidied up
        ranks: list[subprocess.Popen[bytes]] = []
        undo.callback(_kill, ranks)
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
            place["LOCAL_WORLD_SIZE"] = world
            environ = {name: str(value) for name, value in place.items()}
            environ[STORE_FILE] = str(Path(private) / "store")
            ranks.append(
                subprocess.Popen(  # noqa: S603  # the same command again
                    [sys.executable, "-P", "-m", "asyncrl", *args],
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C reaches them once, through us
                )
            )
        return _wait(ranks, interrupter, interrupted)


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]], interrupter: Interrupter, interrupted: Interrupted
) -> int:
    """Wait until all have ended, and pass signals on; return the exit code of the first failure."""
    code, deadline, is_forwarded = 0, math.inf, False
    while running := [rank for rank in ranks if rank.poll() is None]:
        if interrupted.again:
            logger.warning("interrupted twice; the learners are killed")
            _kill(running)
            return interrupted.exit_code
        if interrupter.save_requested:  # all save when one is asked to
            interrupter.save_requested = False
            running[0].send_signal(signal.SIGUSR1)
        if interrupter.is_set and not is_forwarded:
            is_forwarded = True
            for rank in running:
                rank.send_signal(interrupted.exit_code - 128)
        code = code or _first_failure(ranks)
        if code and not is_forwarded and deadline == math.inf:
            deadline = time.monotonic() + _OTHERS_S
        if time.monotonic() >= deadline or (code and all(map(_is_stopped, running))):
            _kill(running)
        time.sleep(_POLL_S)
    return code or _first_failure(ranks)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the exit code of a learner that has failed, 0 if none has."""
    codes = [rank.returncode for rank in ranks if rank.returncode]
    return max(codes[0], 1) if codes else 0


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process can never end by itself, as after SIGSTOP."""
    return process_state(process.pid) == "T"


def _kill(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()
