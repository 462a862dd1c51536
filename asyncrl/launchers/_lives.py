"""The files that one life of an actor leaves in the launcher's private directory.

    0-3.progress   its counters, mapped into memory by both sides
    0-3.error      class and message of the exception that ended it, then its traceback
    0-3.stacks     where its threads stood when it crashed, or when it was asked
    0-3.log        what it logged, a line of JSON each, for the learner's own log

They are files so that they outlive the actor, however it ends. What it is to run, and its key with
that, is in none of them, see `_bodies.py`.
"""

from __future__ import annotations

import json
import logging
import mmap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl.core.launcher import ProgressReport
from asyncrl.core.messages import Peer

_CELLS = 4
_BYTES = 8 * _CELLS
_ENDINGS = ("progress", "error", "stacks", "log")
_MOST_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LifeFiles:
    """Where the files of one life are."""

    directory: Path
    name: str

    @classmethod
    def of(cls, directory: Path, peer: Peer) -> LifeFiles:
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
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._left_bytes = _MOST_LOG_BYTES

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line, in one piece."""
        try:
            words = [record.levelno, record.name, self.format(record)]
            line = json.dumps(words).encode() + b"\n"
            self._left_bytes -= len(line)
            if self._left_bytes >= 0:
                with self._path.open("ab", buffering=0) as file:
                    file.write(line)
        except Exception:
            self.handleError(record)


class ProgressBoard:
    """A few numbers of 8 bytes that one process writes and another one reads.

    Aligned numbers of 8 bytes are read and written in one piece, so there is no lock.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_BYTES))
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

    def read(self) -> ProgressReport:
        """Return what was noted."""
        turns, produced, waiting, waits = self._cells
        return ProgressReport(turns, produced, bool(waiting), waits)

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()
        self._map.close()
