"""Locks a directory, so that one run at a time writes to it.

The system releases the lock when the process that took it ends, so a run that was killed blocks no
other. A child forked from that process does not share the lock: it may outlive the run. Does not
know what is in the directory.
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
    """Create a directory and its missing parents, for this user only, and flush it to disk.

    An existing directory is left unchanged; with `new` it raises `FileExistsError`.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing[1:]):
        path.mkdir(mode=0o700, exist_ok=True)  # `parents` would make them for others, too
    directory.mkdir(mode=0o700, exist_ok=not new)
    for path in missing:
        with suppress(PermissionError):  # a parent may be writable but not readable
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NAME = ".lock"
_held: set[DirectoryLock] = set()


class DirectoryLock:
    """A lock, held from construction to `release`."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; create the directory if needed.

        Raises `ConfigError` if another process holds it, or if it cannot be taken.
        """
        self._directory = directory
        self._path = directory / _NAME
        self._made = [path for path in (directory, *directory.parents) if not path.exists()]
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
                f"cannot lock {self._path}: {error.strerror}; use your own directory on a local "
                "disk that is not full"
            ) from error

    @property
    def is_there(self) -> bool:
        """Whether its file still exists at its path; not after the directory was removed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def release(self) -> None:
        """Release the lock; remove directories made for it that are empty. May be called again."""
        if self._descriptor < 0:
            return
        try:
            if self.is_there:
                self._path.unlink(missing_ok=True)
        finally:
            self.abandon()
        with suppress(OSError):  # the first that is not empty
            for path in self._made:
                path.rmdir()

    def abandon(self) -> None:
        """Close this process's descriptor; a process that shares it keeps the lock."""
        # In this order: a child that is forked meanwhile must not close an unrelated descriptor.
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _take(self) -> int:
        """Return a descriptor that holds the lock, or -1 if its file was removed meanwhile."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # its last holder removed the directory
            return -1
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"{self._directory} is in use by another run, {_holder(descriptor)}; wait "
                    "until it ends, or use another directory"
                ) from error
            # Its last holder may have removed the file between open and lock.
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
        return "which has just started"
