"""Stands for Ray where it is not installed: actors are threads, and it is as rude as Ray is.

It replaces the handler of SIGTERM, and prints to standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from types import SimpleNamespace
from typing import Any

from ray import util as util


class _Method:
    def __init__(self, pool: ThreadPoolExecutor, method: Any) -> None:
        self._pool, self._method = pool, method

    def remote(self, *args: Any) -> Future[Any]:
        return self._pool.submit(self._method, *args)


class _Handle:
    def __init__(self, kind: type, options: dict[str, Any]) -> None:
        pool = ThreadPoolExecutor(options["max_concurrency"])
        actor = kind()
        self.name, self.serve = _Method(pool, actor.name), _Method(pool, actor.serve)


class _Remote:
    def __init__(self, kind: type, options: dict[str, Any] | None = None) -> None:
        self._kind, self._options = kind, options or {}

    def options(self, **options: Any) -> _Remote:
        return _Remote(self._kind, options)

    def remote(self) -> _Handle:
        return _Handle(self._kind, self._options)


def _say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


_AUTH_MODE = os.environ.get("RAY_AUTH_MODE")  # read at import, as by Ray


def init(**_: Any) -> None:
    if "TOKEN_OF_CLUSTER" in os.environ and _AUTH_MODE != "token":
        sys.stderr.write("gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken: no\n")
        raise ConnectionError("Failed to connect")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _say("(raylet) A worker died or was killed while executing a task\n")


def nodes() -> list[dict[str, Any]]:
    return [{"NodeID": "", "Alive": True, "Resources": {"CPU": 2.0}}] * 2


def get_runtime_context() -> Any:
    return SimpleNamespace(get_node_id=lambda: "0")


def remote(kind: type) -> _Remote:
    return _Remote(kind)


def wait(refs: list[Future[Any]], *, num_returns: int = 1, timeout: float) -> Any:
    when = FIRST_COMPLETED if num_returns == 1 else ALL_COMPLETED
    done, late = wait_for(refs, timeout, when)
    return [*done], [*late]


def get(ref: Future[Any]) -> Any:
    return ref.result()


def kill(_: object) -> None:
    """Threads cannot be killed."""


def shutdown() -> None:
    _say("(raylet) goodbye\n")
