"""Records as lines of JSON: one object a line, on disk as soon as it is written.

Holds no configuration, which the run saves beside it, so that every line is a record.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from asyncrl.recorder import Record

__all__ = ["JsonlRecorder"]

logger = logging.getLogger(__name__)


class JsonlRecorder:
    """Appends each record to a file as one line, `null` for NaN and infinity.

    JSON has no word for those two, and other words for them are what strict readers stumble over.
    A file that is already there is continued. If it ends in half a line, as after a power cut,
    that half is cut off: it can never be read, and the next record must not be glued to it.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._file: BinaryIO | None = None

    def start(self, config: Mapping[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _drop_half_line(self._path)
        self._file = self._path.open("ab")

    def write(self, record: Record) -> None:
        if self._file is None:
            raise ValueError(f"{self._path} is not open: write comes between start and close")
        values = {name: _finite(float(value)) for name, value in record.items()}
        # One write of whole lines, flushed: whoever follows the file sees no half records.
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self, *, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _drop_half_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        logger.warning("%s ended in half a record of %d bytes", path, len(content) - whole)
        with path.open("r+b") as file:
            file.truncate(whole)
