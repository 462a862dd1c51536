"""A launcher's private directory, and the files of one incarnation of an actor in it.

    0-3.progress   its counters and the request to finish, mapped into memory by both sides
    0-3.error      class and message of the exception that ended it, then its traceback
    0-3.stacks     the stacks of its threads at a crash, or on request
    0-3.log        what it logged, a line of JSON each, for the learner's own log

They are files so that they outlive the actor, however it exits. Its body, which includes its key,
is in none of them: it is passed by descriptor, see `make_body`. Does not know what actors do.
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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ProgressReport
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId

_BYTES = 40
_ENDINGS = ("progress", "error", "stacks", "log")
_MOST_LOG_BYTES = 1 << 20

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from asyncrl.fleet.{module} import main; main(sys.argv[2:])"
)

UNREPORTED_ERROR = (113, 114)
"""Exit codes of an actor that could not write its error into its file: before it began, and
after."""


@dataclass(frozen=True, slots=True)
class IncarnationFiles:
    """Paths of the files of one incarnation."""

    directory: Path
    name: str

    @classmethod
    def of(cls, directory: Path, peer: Peer) -> IncarnationFiles:
        """Return the files of an incarnation."""
        return cls(directory, f"{peer.actor_id}-{peer.incarnation}")

    def path(self, ending: str) -> Path:
        """Return the path of one of the files."""
        return self.directory / f"{self.name}.{ending}"

    def write_error(self, error: str, text: str, *, began: bool) -> None:
        """Write the error that ended it, or kept it from beginning; completely or not at all."""
        draft = self.path("error-draft")
        draft.write_text(json.dumps([error, text, began]), encoding="utf-8")
        draft.rename(self.path("error"))

    def read_error(self) -> tuple[str, str, bool]:
        """Return class and message in one line, traceback or stacks, and whether it had begun."""
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
    """Reads an incarnation's log as it grows.

    It is called many times per second and reuses one path object: CPython interns each part of a
    new path, in a table of 4 MB that it rebuilds after enough of them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0

    def read(self) -> list[tuple[int, str, str]]:
        """Return level, logger and message of the complete lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                data = file.read()
        except FileNotFoundError:  # nothing was logged
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._start += len(whole)
        lines: list[tuple[int, str, str]] = []
        for line in whole.splitlines():
            with suppress(ValueError):  # on a full disk the end of a line may be missing
                lines.append(tuple(json.loads(line)))
        return lines


class LogFile(logging.Handler):
    """Writes what a process logs to its incarnation's file, up to a limit.

    On the terminal, which it shares with the learner, it would break the learner's live view.
    Messages beyond the limit are counted; the first one and the number at the end are reported.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._left_bytes = _MOST_LOG_BYTES
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line in one write."""
        try:
            line = self._line(record)
            self._left_bytes -= len(line)
            if self._left_bytes >= 0:
                self._append(line)
                return
            self._dropped += 1
            if self._dropped == 1:
                self._report_dropped()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Log how many messages were dropped."""
        with suppress(OSError):
            if self._dropped > 1:
                self._report_dropped()
        super().close()

    def _report_dropped(self) -> None:
        words = "log messages dropped so far: %d; the limit for one process is %d MiB"
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
    """A few numbers of 8 bytes, each written by one process or thread and read by another.

    Aligned numbers of 8 bytes are read and written atomically, so no lock is needed.
    """

    def __init__(self, path: Path | None = None, *, create: bool = False) -> None:
        """Map a file that two processes share; without one, only threads share the numbers."""
        if path is None:
            self._map = mmap.mmap(-1, _BYTES)
        else:
            if create:
                _write(path, bytes(_BYTES))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _BYTES)
        self._cells = memoryview(self._map).cast("Q")

    def turn(self, produced: int) -> None:
        """Count a finished step."""
        self._cells[1] = produced
        self._cells[0] += 1

    def waiting(self, waiting: bool) -> None:
        """Record that the actor waits for the learner, or no longer does."""
        self._cells[2] = waiting
        self._cells[3] += 1

    def finish(self) -> None:
        """Ask the actor to finish; only the launcher's side writes this cell."""
        self._cells[4] = 1

    def finishing(self) -> bool:
        """Whether the launcher asks the actor to finish."""
        return bool(self._cells[4])

    def read(self) -> ProgressReport:
        """Return the current numbers."""
        turns, produced, waiting, waits, _ = self._cells
        return ProgressReport(turns, produced, bool(waiting), waits)

    def close(self) -> None:
        """Release the memory."""
        self._cells.release()
        self._map.close()


def _write(path: Path, data: bytes) -> None:
    """Write a file; the error names the file, which a full disk's error does not."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


if sys.platform == "linux":
    _SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make_body(data: bytes) -> int:
    """Return a descriptor from which these bytes can be read once; no other user can read them."""
    descriptor = _nameless()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)  # all copies of a descriptor share one offset
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def identity(descriptor: int) -> int:
    """Return a number that identifies a descriptor in any process, while one copy of it is open."""
    return os.fstat(descriptor).st_ino


def take_body(descriptor: int) -> bytes:
    """Return the body, and close the descriptor."""
    with open(descriptor, "rb") as file:
        return file.read()


def _nameless() -> int:
    if sys.platform == "linux":
        return os.memfd_create("asyncrl-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # On other systems: a file that is unlinked before anything is written to it.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_VARIABLE = "ASYNCRL_LAUNCHER"
_INCARNATION = "ASYNCRL_INCARNATION"
_MOST_ROUNDS = 5


def marked(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """Return an environment that marks processes as belonging to a launcher's directory."""
    return {**environment, _VARIABLE: os.fspath(directory)}


def incarnation_mark(directory: Path, name: str) -> dict[str, str]:
    """Return an environment variable that marks processes as belonging to one incarnation."""
    return {_INCARNATION: f"{directory}/{name}"}


def incarnation_of(pid: int, directory: Path) -> str | None:
    """Return the incarnation that a launcher's process belongs to, or None if unknown."""
    mark = os.fsencode(f"{_INCARNATION}={directory}/")
    with suppress(OSError):  # it belongs to another user
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(mark):
                return os.fsdecode(variable.removeprefix(mark))
    return None


def kill_marked(directory: Path) -> None:
    """Kill every process of this user that is marked with a directory, except this one."""
    for _ in range(_MOST_ROUNDS):  # one of them may have started another meanwhile
        killed = sum(_kill_if_marked(entry, directory) for entry in Path("/proc").glob("[0-9]*"))
        if not killed:
            return


def _kill_if_marked(entry: Path, directory: Path) -> bool:
    pid = int(entry.name)
    if pid == os.getpid():
        return False
    with suppress(OSError):  # it belongs to another user, or has just exited
        process = os.pidfd_open(pid)
        try:
            # Read after the process was opened: no other process can have got its number.
            environment = (entry / "environ").read_bytes().split(b"\0")
            ours = entry.stat().st_uid == os.geteuid()
            if ours and os.fsencode(f"{_VARIABLE}={directory}") in environment:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


ALIVE = ".alive"
"""The file whose lock shows that the directory is in use; it also marks it as one of asyncrl's."""

_PREFIX = "asyncrl-"
_LONGEST_TEMP = 70
WAITING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that are blocked in `uninterrupted`, and in a process that is started in it."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Block signals whose handlers might raise before what was made can be undone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_directory() -> tuple[Path, int]:
    """Return a new directory that only this user can read, and a descriptor that holds its lock.

    Raises `ConfigError` if none can be made.
    """
    parent = temp_directory()
    try:
        return _make_directory(parent)
    except OSError as error:
        too_long = f" (TMPDIR has more than {_LONGEST_TEMP} bytes)" if parent != _usual() else ""
        raise ConfigError(
            f"cannot make a directory for sockets and files of actors in {parent}{too_long}: "
            f"{error.strerror}; set TMPDIR to a writable directory with a path of at most "
            f"{_LONGEST_TEMP} bytes"
        ) from error


class HereLauncher(ABC):
    """What launchers of this machine share; use them in a `with` block, or close them."""

    def __init__(self, names: Mapping[ActorId, str] | None = None) -> None:
        self._names = names or {}
        self.directory, self._alive = make_directory()
        """A directory that only this user can read; `close` removes it."""

    def has_room(self, actor_id: ActorId, actors: int) -> bool:
        """Return True: this machine takes every actor."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Kill what still runs and release everything; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, actor_id: ActorId) -> str:
        return self._names.get(actor_id, f"actor {actor_id}")

    def _remove_directory(self) -> None:
        if self._alive >= 0:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._alive)
            self._alive = -1


def temp_directory() -> Path:
    """Return the parent directory; a socket in it must have a path of at most 100 bytes."""
    usual = _usual()
    return Path("/tmp") if len(os.fsencode(usual)) > _LONGEST_TEMP else usual  # noqa: S108


def _usual() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        tried = str(error.strerror).partition("['")[2].removesuffix("']").replace("', '", ", ")
        raise ConfigError(
            f"no directory for temporary files is writable, of {tried}; set TMPDIR to one that is"
        ) from error


def _make_directory(parent: Path) -> tuple[Path, int]:
    for path in parent.glob(f"{_PREFIX}*/{ALIVE}"):
        with suppress(OSError):  # removed meanwhile, or being removed
            _remove_if_abandoned(path)
    # It is renamed to a name that others look for only after the lock is taken.
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    with ExitStack() as undo:
        undo.callback(draft.rmdir)
        descriptor = os.open(draft / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(os.close, descriptor)
        undo.callback((draft / ALIVE).unlink)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        directory = draft.rename(draft.with_name(draft.name.removeprefix(".")))
        undo.pop_all()
    return directory, descriptor


def _remove_if_abandoned(alive: Path) -> None:
    descriptor = os.open(alive, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.getuid():
            kill_marked(alive.parent)
            shutil.rmtree(alive.parent, ignore_errors=True)
    finally:
        os.close(descriptor)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs an asyncrl module in a new interpreter, with this one's path.

    The current directory, where others may have put files, is searched only if it is on that path.
    """
    search_path = json.dumps([os.fspath(path) for path in sys.path])
    return [sys.executable, "-P", "-c", _BOOT.format(module=module), search_path, *arguments]
