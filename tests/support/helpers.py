"""What several test files use."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.callback import Callback, Training
from asyncrl.core.types import Array


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Return as soon as `condition` holds; raise with `what` was waited for if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}")
        time.sleep(0.01)


def copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


class WaitsForSaves(Callback):
    """Holds the learner until a checkpoint is on disk; a newer one replaces those still waiting."""

    def __init__(self, directory: Path) -> None:
        self.checkpoints = Checkpointer(directory)

    def saved(self, trainer: Training, opt_steps: int) -> None:
        name = str(opt_steps)
        wait_until(lambda: name in self.checkpoints.names(), 30, f"checkpoint {name} on disk")


def no_thread(_: threading.Thread) -> None:
    """Stand in for `threading.Thread.start` where the system allows no more threads."""
    raise RuntimeError("can't start new thread")


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Open files until `select.select` can take no further one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1024:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def in_actor() -> bool:
    """Whether this is the process of an actor or evaluator, not one that inspects environments."""
    _, _, number = os.environ.get("ASYNCRL_INCARNATION", "").rpartition("/")
    return number[:1].isdigit()
