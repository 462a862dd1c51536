"""One run at a time writes to a directory; who comes second is told who was first.

The system holds the lock for as long as the process lives that took it, so a run that was killed
keeps nobody out. A child that was forked from it has no part in the lock: it may outlive the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from asyncrl.core.errors import ConfigError


def make_directory(directory: Path, *, new: bool = False) -> None:
    """Make a directory for its user alone, and what is missing above it; on disk on return.

    One that is there already stays as it is; where a `new` one is asked for, `FileExistsError` is
    raised.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=not new)
    for path in missing:
        with suppress(PermissionError):  # new names may be allowed there, and reading not
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NAME = ".lock"
_held: set[DirectoryLock] = set()


class DirectoryLock:
    """Taken when it is made, and given back by `release`."""

    def __init__(self, directory: Path) -> None:
        """Take the lock, making the directory if need be.

        Raises `ConfigError` if another has it, or nobody can.
        """
        self._directory = directory
        self._path = directory / _NAME
        self._made = not directory.exists()
        self._descriptor = -1
        try:
            while self._descriptor < 0:
                make_directory(directory)
                self._descriptor = self._take()
            _held.add(self)
            words = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, words.encode(), 0)
        except OSError as error:
            self.release()
            raise ConfigError(
                f"cannot lock {self._path}: {error.strerror}; give a directory of your own on a "
                "local disk that is not full"
            ) from error

    @property
    def is_there(self) -> bool:
        """Whether its file is still where others look for it; not if the directory was removed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def release(self) -> None:
        """Give the lock back; a directory made for it goes if it is empty. May be called again."""
        if self._descriptor < 0:
            return
        try:
            if self.is_there:
                self._path.unlink(missing_ok=True)
        finally:
            self.abandon()
        if self._made:
            with suppress(OSError):
                self._directory.rmdir()

    def abandon(self) -> None:
        """Have no part in the lock any more; whoever else has its descriptor still holds it."""
        # In this order: a child that is forked meanwhile must not close a stranger's descriptor.
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _take(self) -> int:
        """Return a descriptor that holds the lock, or -1 if its file was removed meanwhile."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the directory went with its last holder
            return -1
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"{self._directory} is in use by another run, {_holder(descriptor)}; wait for "
                    "its end, or give another directory"
                ) from error
            # Its last holder may have removed the file between our opening and our locking it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                    undo.pop_all()
                    return descriptor
        return -1


def _abandon_all() -> None:
    for lock in list(_held):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _holder(descriptor: int) -> str:
    try:
        words = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(words['pid'])} on {str(words['host'])[:100]}"
    except (ValueError, KeyError, TypeError):
        return "which has just begun"
