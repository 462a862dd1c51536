"""Records as JSON lines: one object a line, flushed as soon as it is written.

Does not write the configuration, which the run saves beside it, so that every line is a record.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from asyncrl.core.recorder import Record

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 16 << 10


class JsonlRecorder:
    """Appends each record to a file as one line, after its `time`; `null` for NaN and infinity.

    JSON has no literals for those two, and strict parsers reject the usual extensions. An existing
    file is continued. If it ends in a partial line, as after a power cut, that line is truncated,
    since the next record would be appended to it. When a run is resumed, the last records are
    removed as far as they are later than its checkpoint. While the disk is full, records are
    dropped with a warning; writing resumes when there is space. If the file is removed or renamed
    during the run, a new one is created under the same path.
    """

    def __init__(self, path: Path | str, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path).absolute()  # the working directory may change
        self._clock = clock
        self._file: FileIO | None = None
        self._left_out = 0
        self._at: Record | None = None

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        self._at = {"env_steps": env_steps, "opt_steps": opt_steps}

    def start(self, config: Mapping[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _cut_end(self._path, self._at)
        self._file = self._path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        if self._file is None:
            raise ValueError(
                f"{self._path} is not open: write was called before start or after close"
            )
        values = {name: _finite(float(value)) for name, value in record.items()}
        line = (
            json.dumps({"time": round(self._clock(), 3), **values}, allow_nan=False).encode()
            + b"\n"
        )
        try:
            self._file = self._found(self._file)
            _append(self._file, line)
        except OSError as error:
            self._leave_out(error)
        else:
            self._note_left_out()

    def _found(self, file: FileIO) -> FileIO:
        """Return the open file, or a new one if the path no longer leads to it."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                return file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        begun = self._path.open("ab", buffering=0)
        file.close()
        logger.warning("%s was removed or renamed; records continue in a new file", self._path)
        return begun

    def _leave_out(self, error: OSError) -> None:
        if not self._left_out:
            logger.warning("%s: %s; records are dropped until it can be written", self._path, error)
        self._left_out += 1

    def _note_left_out(self) -> None:
        if self._left_out:
            logger.warning(
                "%s can be written again; %d records were dropped", self._path, self._left_out
            )
            self._left_out = 0

    def close(self, *, failed: bool) -> None:
        if self._file is not None:
            if self._left_out:
                logger.warning("%s lacks its last %d records", self._path, self._left_out)
            self._file.close()
            self._file = None


def _append(file: FileIO, line: bytes) -> None:
    """Write a line in one call, so that readers rarely see a part of it. Truncate it on error."""
    whole = file.seek(0, os.SEEK_END)
    written = 0
    try:
        written = file.write(line)
    finally:
        if written < len(line):
            file.truncate(whole)
    if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cut_end(path: Path, at: Record | None) -> None:
    """Truncate a partial line, and the last records that are later than `at`.

    Reads only the end of the file. What stays is never rewritten, so a crash loses nothing.
    """
    later = 0
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        kept = whole = _begin_of_line(file, end)
        while at and kept:
            begin = _begin_of_line(file, kept - 1)
            file.seek(begin)
            if not _is_later(file.read(kept - begin), at):
                break
            kept = begin
            later += 1
        if kept < end:
            file.truncate(kept)
    if whole < end:
        logger.warning(
            "%s ended in a partial record of %d bytes, which was removed", path, end - whole
        )
    if later:
        logger.info("%s: %d records later than the checkpoint were removed", path, later)


def _begin_of_line(file: BinaryIO, end: int) -> int:
    """Return where the line that ends at `end` begins."""
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        if found := file.read(end - begin).rfind(b"\n") + 1:
            return begin + found
        end = begin
    return 0


def _is_later(line: bytes, at: Record) -> bool:
    try:
        record = json.loads(line)
        return any(record[name] > value for name, value in at.items())
    except (KeyError, TypeError, ValueError):
        return False  # not a record of a run
