"""Standard output is for the results of a command; what else prints goes to stderr.

Environments, agents and native code may print in this process, too: in synchronous runs, inline
evaluations, or while their modules are imported. So `sys.stdout` is stderr while a command runs,
and in a process of its own so is descriptor 1. Commands write results by `show`, and
sentences about errors by `complain`.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import ParamSpec, TextIO, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_STDOUT, _STDERR = 1, 2
_results: list[TextIO] = []


def results() -> TextIO:
    """Return where results go."""
    return _results[-1] if _results else sys.stdout


def show(text: str) -> None:
    """Write a line of results, at once."""
    print(text, file=results(), flush=True)


def complain(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr)  # noqa: T201


def on_results(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what prints results itself, as the parser of flags prints help."""
    with redirect_stdout(results()):
        return call(*args, **kwargs)


def take_standard_output() -> None:
    """Keep descriptor 1 under another number, known to `sys.stdout` alone, and make it stderr.

    For a process that is a command's own. There is no way back: native code may keep what it
    prints in a buffer until the process ends.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from the start
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    sys.stdout.flush()
    kept = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(sys.stderr.fileno(), _STDOUT)


@contextmanager
def results_alone() -> Iterator[None]:
    """Leave what `sys.stdout` is to `show`; have others print to stderr."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
        sys.stdout.flush()
    finally:
        _results.pop()
