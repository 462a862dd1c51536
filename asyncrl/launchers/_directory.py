"""A launcher's private directory, and the removal of those that their launchers left behind.

A launcher's helper process removes the directory when the learner is killed. Should both have been
killed at once, the next launcher of the same user finds that nobody holds the directory's lock,
removes it, and kills what is left of the actors: they have ended with the helper, but what they
had started in sessions of its own has not. The system holds the lock for as long as one of the
two processes lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from asyncrl.launchers._marks import kill_marked

ALIVE = ".alive"
"""The file whose lock says that somebody uses the directory; it also marks it as one of ours."""

_PREFIX = "asyncrl-"
_LONGEST_TEMP = 70
_DRAFT_S = 3600.0
"""A directory that has been in the making for so long is being made by nobody."""

WAITING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that wait in `uninterrupted`, and in a process that is started in it."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals wait whose handlers might raise before what was made can be undone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_directory() -> tuple[Path, int]:
    """Return a new directory that only this user can read, and a descriptor that holds its lock."""
    parent = _short_parent()
    for path in parent.glob(f"{_PREFIX}*/{ALIVE}"):
        with suppress(OSError):  # it has gone meanwhile, or somebody else may remove it
            _remove_if_abandoned(path)
    # It gets the name under which others look only when the lock is taken.
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    for path in parent.glob(f".{_PREFIX}*"):
        with suppress(OSError):
            _remove_if_older(path, than=draft.stat().st_mtime - _DRAFT_S)
    with ExitStack() as undo:
        undo.callback(draft.rmdir)
        descriptor = os.open(draft / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(os.close, descriptor)
        undo.callback((draft / ALIVE).unlink)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        directory = draft.rename(draft.with_name(draft.name.removeprefix(".")))
        undo.pop_all()
    return directory, descriptor


def _short_parent() -> Path:
    """Return where the directory is to be; a socket in it must have a path of at most 100 bytes."""
    usual = tempfile.gettempdir()
    return Path("/tmp" if len(os.fsencode(usual)) > _LONGEST_TEMP else usual)  # noqa: S108


def _remove_if_older(draft: Path, *, than: float) -> None:
    """Remove what a process left that was killed while it made a directory, which takes no time."""
    seen = draft.lstat()
    if seen.st_uid == os.getuid() and seen.st_mtime < than:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_if_abandoned(alive: Path) -> None:
    descriptor = os.open(alive, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.getuid():
            kill_marked(alive.parent)
            shutil.rmtree(alive.parent, ignore_errors=True)
    finally:
        os.close(descriptor)
