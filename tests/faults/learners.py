"""Whole runs in a separate process, seen from outside."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from asyncrl.fleet.local_files import ProgressBoard
from tests.support import warm
from tests.support.helpers import wait_until

_DEADLINE_S = 60.0

LEARNER = """
import json, sys
from pathlib import Path
from tests.faults.runs import until, with_restarts
from tests.integration.test_train_async import run

result, _ = run(
    with_restarts(2, step_timeout_s=float(sys.argv[2])),
    strategy=until(lambda _: Path(sys.argv[1]).exists()),
    stop=None,
)
print(json.dumps([result.ledger, result.actors]))
"""


def learner(enough: Path, timeout_s: float = 300.0) -> AbstractContextManager[warm.Process]:
    """Start a run with two actors, in a separate process group; it ends when the file is there.

    It then prints its ledger and what its actors did. `timeout_s` is what a step may take.
    """
    return warm.started("code", [LEARNER, str(enough), str(timeout_s)], cwd=Path.cwd())


@contextmanager
def boards() -> Iterator[list[ProgressBoard]]:
    """Read what the two actors leave word of, over the learner's shoulder."""

    def paths() -> list[Path]:
        found = sorted(Path(tempfile.gettempdir()).glob("asyncrl-*/*.progress"))
        return [path for path in found if path.stat().st_size]  # else it is just being made

    wait_until(lambda: len(paths()) == 2, _DEADLINE_S, "the actors")
    opened = [ProgressBoard(path) for path in paths()]
    try:
        yield opened
    finally:
        for board in opened:
            board.close()
