"""Keeps standard output for the results of a command; everything else is printed to stderr.

Environments, agents and native code may print in this process: in synchronous runs, inline
evaluations, or when their modules are imported. So `sys.stdout` is stderr while a command runs, and
in the program's own process descriptor 1 is stderr too. Commands write results with `show`, and
errors with `complain`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from textwrap import TextWrapper
from typing import TextIO

_STDOUT, _STDERR = 1, 2
_results: list[TextIO] = []


def results() -> TextIO:
    """Return the stream for results."""
    return _results[-1] if _results else sys.stdout


def wrapped(line: str, indent: int, most: int = sys.maxsize) -> str:
    """Wrap a line between words, where it is longer than `most` or the terminal that shows it."""
    columns = shutil.get_terminal_size().columns if results().isatty() else most
    wrap = TextWrapper(min(most, columns), subsequent_indent=" " * indent)
    wrap.break_long_words = wrap.break_on_hyphens = False
    return wrap.fill(line)


def show(text: str) -> None:
    """Write a line of results and flush."""
    try:
        print(text, file=results(), flush=True)
    except OSError as error:
        error.add_note("asyncrl: standard output cannot be written")
        raise


def complain(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr)  # noqa: T201


@contextmanager
def printing_log(*names: str, by: Callable[[str], object] = show) -> Iterator[None]:
    """Print what these loggers say below warnings; another handler prints warnings."""
    handler = _Printing(by)
    with ExitStack() as undo:
        for logger in map(logging.getLogger, names):
            undo.callback(logger.setLevel, logger.level)
            undo.callback(logger.removeHandler, handler)
            logger.setLevel(logging.INFO)
            logger.addHandler(handler)
        yield


class _Printing(logging.Handler):
    def __init__(self, by: Callable[[str], object]) -> None:
        super().__init__()
        self._by = by

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self._by(record.getMessage())


def open_closed_streams() -> None:
    """Lead standard streams that are closed to /dev/null.

    Otherwise a pipe or a socket would take such a number, under which child processes print.
    """
    for number in (0, _STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def take_standard_output() -> None:
    """Move descriptor 1 to another number, used by `sys.stdout` only, and redirect 1 to stderr.

    Only for a process that runs a command. It cannot be undone: native code may buffer its output
    until the process ends.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # standard output was closed from the start
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    sys.stdout.flush()
    kept = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(sys.stderr.fileno(), _STDOUT)


@contextmanager
def results_alone() -> Iterator[None]:
    """Reserve the present `sys.stdout` for `show`; everything else prints to stderr."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
        sys.stdout.flush()
    finally:
        _results.pop()
