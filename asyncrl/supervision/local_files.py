"""The files that one life of an actor leaves in the launcher's private directory.

    0-3.progress   its counters and the request to finish, mapped into memory by both sides
    0-3.error      class and message of the exception that ended it, then its traceback
    0-3.stacks     where its threads stood when it crashed, or when it was asked
    0-3.log        what it logged, a line of JSON each, for the learner's own log

They are files so that they outlive the actor, however it ends. What it is to run, and its key with
that, is in none of them: it is passed by descriptor, see `make_body`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ProgressReport
from asyncrl.core.messages import Peer

_CELLS = 5
_BYTES = 8 * _CELLS
_ENDINGS = ("progress", "error", "stacks", "log")
_MOST_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IncarnationFiles:
    """Where the files of one life are."""

    directory: Path
    name: str

    @classmethod
    def of(cls, directory: Path, peer: Peer) -> IncarnationFiles:
        """Return the files of an actor's life."""
        return cls(directory, f"{peer.actor_id}-{peer.incarnation}")

    def path(self, ending: str) -> Path:
        """Return one of the files."""
        return self.directory / f"{self.name}.{ending}"

    def write_error(self, error: str, text: str, *, began: bool) -> None:
        """Keep what ended it, or kept it from beginning; whole or not at all."""
        draft = self.path("error-draft")
        draft.write_text(json.dumps([error, text, began]), encoding="utf-8")
        draft.rename(self.path("error"))

    def read_error(self) -> tuple[str, str, bool]:
        """Return class and message in one line, traceback or stacks, and whether it has begun."""
        if self.path("error").is_file():
            error, text, began = json.loads(self.path("error").read_text(encoding="utf-8"))
            return str(error), str(text), bool(began)
        if self.path("stacks").is_file():
            return "", self.path("stacks").read_text(encoding="utf-8", errors="replace"), True
        return "", "", True

    def remove(self) -> None:
        """Delete them."""
        for ending in (*_ENDINGS, "error-draft"):
            self.path(ending).unlink(missing_ok=True)


class LogReader:
    """Reads a life's log as it grows.

    It is asked many times a second, and has one path for that: CPython remembers each part of a
    path that is made, in a table of 4 MB that is built anew when it has seen enough of them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0

    def read(self) -> list[tuple[int, str, str]]:
        """Return level, logger and message of whole lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                data = file.read()
        except FileNotFoundError:  # it has had nothing to say
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._start += len(whole)
        lines: list[tuple[int, str, str]] = []
        for line in whole.splitlines():
            with suppress(ValueError):  # on a full disk, the end of one may be missing
                lines.append(tuple(json.loads(line)))
        return lines


class LogFile(logging.Handler):
    """Leaves what a process logs in its life's file, up to a limit.

    On the terminal that it shares with the learner it would break into the learner's live view.
    Messages beyond the limit are counted. The file says so at the 1st, 10th, 100th, ... of them,
    and `close` says how many there were.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._left_bytes = _MOST_LOG_BYTES
        self._dropped = 0
        self._told = 0
        """How many were dropped when the file last said so."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line, in one piece."""
        try:
            line = self._line(record)
            self._left_bytes -= len(line)
            if self._left_bytes >= 0:
                self._append(line)
                return
            self._dropped += 1
            if self._dropped >= 10 * self._told:
                self._tell_dropped()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Say how many messages were dropped."""
        with suppress(OSError):
            if self._dropped > self._told:
                self._tell_dropped()
        super().close()

    def _tell_dropped(self) -> None:
        self._told = self._dropped
        words = "log messages dropped so far: %d; one process may log %d MiB"
        args = (self._dropped, _MOST_LOG_BYTES >> 20)
        self._append(
            self._line(logging.LogRecord(__name__, logging.WARNING, "", 0, words, args, None))
        )

    def _line(self, record: logging.LogRecord) -> bytes:
        return json.dumps([record.levelno, record.name, self.format(record)]).encode() + b"\n"

    def _append(self, line: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            file.write(line)


class ProgressBoard:
    """A few numbers of 8 bytes, each written by one process and read by another.

    Aligned numbers of 8 bytes are read and written in one piece, so there is no lock.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            _write(path, bytes(_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._cells = memoryview(self._map).cast("Q")

    def turn(self, produced: int) -> None:
        """Note the end of one turn."""
        self._cells[1] = produced
        self._cells[0] += 1

    def waiting(self, waiting: bool) -> None:
        """Note that the actor waits for the learner, or no longer does."""
        self._cells[2] = waiting
        self._cells[3] += 1

    def finish(self) -> None:
        """Ask the actor to finish; only the launcher's side writes this cell."""
        self._cells[4] = 1

    def finishing(self) -> bool:
        """Whether the launcher asks the actor to finish."""
        return bool(self._cells[4])

    def read(self) -> ProgressReport:
        """Return what was noted."""
        turns, produced, waiting, waits, _ = self._cells
        return ProgressReport(turns, produced, bool(waiting), waits)

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()
        self._map.close()


def _write(path: Path, data: bytes) -> None:
    """Write a file; an error names it, which that of a full disk does not by itself."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


if sys.platform == "linux":
    _SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make_body(data: bytes) -> int:
    """Return a descriptor of which these bytes can be read once; others cannot come by them."""
    descriptor = _nameless()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)  # all copies of a descriptor read on from one place
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def identity(descriptor: int) -> int:
    """Return a number by which a descriptor is known in any process, while one of it is open."""
    return os.fstat(descriptor).st_ino


def take_body(descriptor: int) -> bytes:
    """Return what is to run, and close the descriptor."""
    with open(descriptor, "rb") as file:
        return file.read()


def _nameless() -> int:
    if sys.platform == "linux":
        return os.memfd_create("asyncrl-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Elsewhere a file that has lost its name before anything is written to it.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_VARIABLE = "ASYNCRL_LAUNCHER"
_INCARNATION = "ASYNCRL_INCARNATION"
_MOST_ROUNDS = 5


def marked(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """Return an environment that marks processes as belonging to a launcher's directory."""
    return {**environment, _VARIABLE: os.fspath(directory)}


def incarnation_mark(directory: Path, name: str) -> dict[str, str]:
    """Return what marks processes as belonging to one life of an actor."""
    return {_INCARNATION: f"{directory}/{name}"}


def incarnation_of(pid: int, directory: Path) -> str | None:
    """Return the life that a process of a launcher's belongs to, or None if that is not known."""
    mark = os.fsencode(f"{_INCARNATION}={directory}/")
    with suppress(OSError):  # it is another user's
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(mark):
                return os.fsdecode(variable.removeprefix(mark))
    return None


def kill_marked(directory: Path) -> None:
    """Kill every process of this user that is marked with a directory, but not this one."""
    for _ in range(_MOST_ROUNDS):  # one of them may have started another meanwhile
        killed = sum(_kill_if_marked(entry, directory) for entry in Path("/proc").glob("[0-9]*"))
        if not killed:
            return


def _kill_if_marked(entry: Path, directory: Path) -> bool:
    pid = int(entry.name)
    if pid == os.getpid():
        return False
    with suppress(OSError):  # it is somebody else's, or has just ended
        process = os.pidfd_open(pid)
        try:
            # Read after the process was taken hold of: nobody else can have got its number.
            environment = (entry / "environ").read_bytes().split(b"\0")
            ours = entry.stat().st_uid == os.geteuid()
            if ours and os.fsencode(f"{_VARIABLE}={directory}") in environment:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


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
    """Return a new directory that only this user can read, and a descriptor that holds its lock.

    Raises `ConfigError` where none can be made.
    """
    parent = temp_directory()
    try:
        return _make_directory(parent)
    except OSError as error:
        too_long = f" (TMPDIR has more than {_LONGEST_TEMP} bytes)" if parent != _usual() else ""
        raise ConfigError(
            f"cannot make a directory for sockets and files of actors in {parent}{too_long}: "
            f"{error.strerror}; set TMPDIR to a directory that can be written, in at most "
            f"{_LONGEST_TEMP} bytes"
        ) from error


def temp_directory() -> Path:
    """Return where the directory is to be; a socket in it must have a path of at most 100 bytes."""
    usual = _usual()
    return Path("/tmp") if len(os.fsencode(usual)) > _LONGEST_TEMP else usual  # noqa: S108


def _usual() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        tried = str(error.strerror).partition("['")[2].removesuffix("']").replace("', '", ", ")
        raise ConfigError(
            f"no directory for temporary files can be written, of {tried}; set TMPDIR to one that "
            "can"
        ) from error


def _make_directory(parent: Path) -> tuple[Path, int]:
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
