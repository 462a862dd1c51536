"""Stands for Ray where it is not installed: tasks are threads, and it is as rude as Ray is.

It replaces the handler of SIGTERM, and prints to standard output.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ALL_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

from ray import util as util


class _Task:
    def __init__(self, function: Any, options: dict[str, Any] | None = None) -> None:
        self._function, self._options = function, options or {}

    def options(self, **options: Any) -> _Task:
        return _Task(self._function, options)

    def remote(self, *args: Any) -> Future[Any]:
        assert self._options["max_retries"]
        return ThreadPoolExecutor(1).submit(self._function, *args)


def _say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def init(*, address: str, log_to_driver: bool, logging_level: str) -> None:
    assert ":" in address, "any other may start a cluster"
    assert (log_to_driver, logging_level) == (False, "CRITICAL")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _say("(raylet) A worker died or was killed while executing a task\n")


def nodes() -> list[dict[str, Any]]:
    return [{"NodeID": "", "Alive": True, "Resources": {"CPU": 2.0}}] * 2


def available_resources() -> dict[str, float]:
    return {"CPU": 3.0}


def remote(function: Any) -> _Task:
    return _Task(function)


def wait(refs: list[Future[Any]], *, num_returns: int, timeout: float) -> Any:
    assert num_returns == len(refs)
    done, late = wait_for(refs, timeout, ALL_COMPLETED)
    return [*done], [*late]


def get(refs: list[Future[Any]]) -> Any:
    return [ref.result() for ref in refs]


def shutdown() -> None:
    _say("(raylet) goodbye\n")
