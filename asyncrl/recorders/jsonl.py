"""Records as lines of JSON: one object a line, on disk as soon as it is written.

Holds no configuration, which the run saves beside it, so that every line is a record.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from asyncrl.recorder import Record

__all__ = ["JsonlRecorder"]

logger = logging.getLogger(__name__)


class JsonlRecorder:
    """Appends each record to a file as one line, `null` for NaN and infinity.

    JSON has no word for those two, and other words for them are what strict readers stumble over.
    A file that is already there is continued. If it ends in half a line, as after a power cut,
    that half is cut off: it can never be read, and the next record must not be glued to it.
    While the disk is full, records are left out, and said to be; they go on when there is room.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._file: FileIO | None = None
        self._left_out = 0

    def start(self, config: Mapping[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _drop_half_line(self._path)
        self._file = self._path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        if self._file is None:
            raise ValueError(f"{self._path} is not open: write comes between start and close")
        values = {name: _finite(float(value)) for name, value in record.items()}
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        try:
            _append(self._file, line)
        except OSError as error:
            self._leave_out(error)
        else:
            self._note_left_out()

    def _leave_out(self, error: OSError) -> None:
        if not self._left_out:
            logger.warning(
                "%s: %s; records are left out until it can be written", self._path, error
            )
        self._left_out += 1

    def _note_left_out(self) -> None:
        if self._left_out:
            logger.warning(
                "%s can be written again; %d records are left out", self._path, self._left_out
            )
            self._left_out = 0

    def close(self, *, failed: bool) -> None:
        if self._file is not None:
            if self._left_out:
                logger.warning("%s lacks its last %d records", self._path, self._left_out)
            self._file.close()
            self._file = None


def _append(file: FileIO, line: bytes) -> None:
    """Write a line in one piece, so that hardly anybody sees half; all of it, or none and raise."""
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


def _drop_half_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        logger.warning("%s ended in half a record of %d bytes", path, len(content) - whole)
        with path.open("r+b") as file:
            file.truncate(whole)
