"""A file of records that is only appended to, and can be read after any crash.

    magic | header, payload | header, payload | ...
    header: kind (1 byte), payload bytes (8), CRC-32 of the payload (4), CRC-32 of the header (4)

The header's checksum begins from the record's number, so a missing or doubled record is noticed,
too. A process that is killed leaves at most one incomplete record at the end. Does not know what
the records are.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np

from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array

_MAGIC = b"asyncrl records 1\n"
_FIELDS = struct.Struct("<BQI")
_CHECK = struct.Struct("<I")
_HEADER_BYTES = _FIELDS.size + _CHECK.size


class Record(NamedTuple):
    """One record, and its place in the file."""

    kind: int
    payload: bytes
    number: int
    """0 for the first."""

    at: int
    """Where its header begins, in bytes."""


class RecordFile:
    """A new file that only its owner can read. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Create it; raise `FileExistsError` if there is one."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._number = 0
        self.nbytes = 0
        """Size of the file."""
        self._write(_MAGIC)

    def append(self, kind: int, *pieces: bytes | Array) -> None:
        """Add a record whose payload is these bytes; arrays must be contiguous."""
        views = [np.frombuffer(piece, np.uint8).data for piece in pieces if len(piece)]
        checksum = 0
        for view in views:
            checksum = zlib.crc32(view, checksum)
        fields = _FIELDS.pack(kind, sum(view.nbytes for view in views), checksum)
        self._write(fields + _CHECK.pack(zlib.crc32(fields, self._number)))
        for view in views:
            self._write(view)
        self._number += 1

    def flush(self) -> None:
        """Hand all records to the system: they survive the end of this process."""
        self._file.flush()

    def close(self) -> None:
        """Flush the file to disk and close it."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes | memoryview) -> None:
        self.nbytes += self._file.write(data)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file; end before one that is incomplete at the end of the file.

    Raises `CheckpointError` at the first record that is damaged; it names the record and its place.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise CheckpointError(f"{path} is not a file of records of this version")
            yield from _records(path, file)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _records(path: Path, file: BinaryIO) -> Iterator[Record]:
    end = os.fstat(file.fileno()).st_size
    number, at = 0, file.tell()
    while at + _HEADER_BYTES <= end:
        header = file.read(_HEADER_BYTES)
        fields, check = header[: _FIELDS.size], header[_FIELDS.size :]
        if zlib.crc32(fields, number) != _CHECK.unpack(check)[0]:
            raise _damaged(path, "header", number, at)
        kind, size, checksum = _FIELDS.unpack(fields)
        if at + _HEADER_BYTES + size > end:
            return
        payload = file.read(size)
        if zlib.crc32(payload) != checksum:
            raise _damaged(path, "content", number, at)
        yield Record(kind, payload, number, at)
        number, at = number + 1, at + _HEADER_BYTES + size


def _damaged(path: Path, part: str, number: int, at: int) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: the {part} of record {number}, which begins at byte {at}, does not "
        "match its checksum"
    )
