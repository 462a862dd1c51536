"""Arrays in a file of the safetensors format, written and hashed piece by piece.

The library packs all arrays into one string first, so a full replay would take its memory twice.
The format is the length of the header in 8 bytes, the header in JSON, then the arrays' bytes:
https://github.com/huggingface/safetensors#format. The library reads the files; those too large to
be in memory twice are mapped into memory.

The pieces of a stream have rows of all its arrays, which lie apart in the file. So each row is
written at its place, the header is written last, and the file is read back for its hash. Does not
know what the arrays are.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.numpy
from numpy.lib.array_utils import byte_bounds
from safetensors import SafetensorError

from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array, Arrays, ArrayStream, Params, Shapes

Digest = dict[str, Any]
"""Size and sha256 of a file."""

_CHUNK_BYTES = 4 << 20

_MORE_HEADER_BYTES = 8 << 10
"""Bytes reserved in the header of a stream for the arrays that follow its pieces."""

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""numpy's names of the dtypes that may be saved, with those of the format."""

_DTYPES = {code: np.dtype(name) for name, code in _NAMES.items()}


def check_finite(group: str, arrays: Params) -> None:
    """Raise `CheckpointError` if a group's arrays contain numbers that are not finite."""
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(
                f"cannot save {group}/{name}: it contains NaN or infinite numbers"
            )


def write_group(path: Path, arrays: Arrays) -> Digest:
    """Write a group as a new file; check each piece of a stream for numbers that are not finite."""
    if isinstance(arrays, Mapping):
        return write_arrays(path, arrays)
    return write_stream(path, arrays, partial(check_finite, path.stem))


def write_arrays(path: Path, arrays: Params) -> Digest:
    """Write a new file and flush it to disk; raise `CheckpointError` for unsupported arrays."""
    plain = {name: _checked(f"{path.stem}/{name}", arrays[name]) for name in arrays}
    return write_file(path, _pieces(plain))


def write_file(path: Path, pieces: Iterator[bytes | memoryview]) -> Digest:
    """Write a new file that only its owner can read, and flush it to disk."""
    sha256, size = hashlib.sha256(), 0
    with _new_file(path) as file:
        for piece in pieces:
            sha256.update(piece)
            file.write(piece)
            size += len(piece)
    return {"size": size, "sha256": sha256.hexdigest()}


def write_stream(
    path: Path, stream: ArrayStream, check: Callable[[Params], object] = lambda _: None
) -> Digest:
    """Write a stream as a new file and flush it to disk; `check` may raise to refuse a piece."""
    for name, (_, dtype) in stream.shapes.items():
        _checked(f"{path.stem}/{name}", np.empty(0, dtype))
    header, end = _layout(stream.shapes, 0)
    header_bytes = len(_packed(header)) + _MORE_HEADER_BYTES
    with _new_file(path) as file:
        for first, piece in stream.pieces():
            check(piece)
            for name, rows in piece.items():
                at = header[name]["data_offsets"][0]
                file.seek(header_bytes + at + first * (rows.nbytes // max(1, len(rows))))
                file.write(_raw(rows))
        rest = {n: _checked(f"{path.stem}/{n}", array) for n, array in stream.rest().items()}
        check(rest)
        more, _ = _layout({n: (array.shape, array.dtype.name) for n, array in rest.items()}, end)
        file.seek(header_bytes + end)
        for name in more:
            file.write(_raw(rest[name]))
        packed = _packed(header | more, header_bytes)
        if len(packed) > header_bytes:
            raise CheckpointError(f"cannot save {path.stem}: {len(more)} arrays are too many")
        file.seek(0)
        file.write(packed)
    return digest_of(path)


def collected(stream: ArrayStream) -> dict[str, Array]:
    """Return copies of all arrays of a stream; close it."""
    try:
        arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in stream.shapes.items()}
        for first, piece in stream.pieces():
            for name, rows in piece.items():
                arrays[name][first : first + len(rows)] = rows
        return arrays | dict(stream.rest())
    finally:
        stream.close()


def digest_of(path: Path) -> Digest:
    """Return the current size and hash of a file."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": sha256.hexdigest()}


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file whose digest has been checked."""
    try:
        arrays: dict[str, Array] = safetensors.numpy.load_file(path)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        # Among these are errors of the library about dtypes that numpy does not have.
        raise CheckpointError(f"{path.name} does not contain arrays: {error}") from error
    for name, array in arrays.items():
        if array.dtype not in _DTYPES.values():  # another package has added it to numpy
            raise CheckpointError(f"{path.name} does not contain arrays: {name} is {array.dtype}")
    return arrays


def map_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file whose digest has been checked, mapped read-only.

    They take memory as they are read, until `evict`. The file may be deleted meanwhile.
    """
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass  # a header that contradicts itself, or the file's size
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8:start])
        header.pop("__metadata__", None)
        return {name: _mapped(mapped, start, entry) for name, entry in header.items()}
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path.name} does not contain arrays: {error}") from error


def evict(arrays: Iterable[Array]) -> None:
    """Drop mapped arrays from this process's memory; reading loads them again."""
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and array.nbytes:
            begin, end = byte_bounds(array)
            begin, end = (at - byte_bounds(np.frombuffer(base, np.uint8))[0] for at in (begin, end))
            begin -= begin % mmap.PAGESIZE
            base.madvise(mmap.MADV_DONTNEED, begin, end - begin)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Make a file that only its owner can read; it is flushed to disk when the context ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(descriptor)


def _mapped(mapped: mmap.mmap, start: int, entry: dict[str, Any]) -> Array:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.ndarray(shape, dtype, mapped, start + entry["data_offsets"][0])


def _checked(what: str, value: Array) -> Array:
    array = np.asarray(value, order="C")
    if array.dtype.name not in _NAMES or not array.dtype.isnative:
        raise CheckpointError(f"cannot save {what}: its dtype is {array.dtype}")
    return array


def _pieces(arrays: Params) -> Iterator[bytes | memoryview]:
    header, _ = _layout({n: (array.shape, array.dtype.name) for n, array in arrays.items()}, 0)
    yield _packed(header)
    for name in header:
        raw = _raw(arrays[name])
        for first in range(0, len(raw), _CHUNK_BYTES):
            yield raw[first : first + _CHUNK_BYTES]


def _layout(shapes: Shapes, end: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header's entries for arrays that begin at `end`, and where they end.

    The format requires that each array begins where the previous one ends. In this order, each
    array after the header begins at a multiple of its item size.
    """
    header: dict[str, dict[str, Any]] = {}
    for name in sorted(shapes, key=lambda name: (-np.dtype(shapes[name][1]).itemsize, name)):
        shape, dtype = shapes[name]
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {
            "dtype": _NAMES[np.dtype(dtype).name],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    return header, end


def _packed(header: Mapping[str, Any], n_bytes: int = 0) -> bytes:
    """Return the header with its length, padded to `n_bytes` bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    size = max(n_bytes - 8, len(text))
    text = text.ljust(size + -size % 8)
    return len(text).to_bytes(8, "little") + text


def _raw(array: Array) -> memoryview:
    raw: memoryview = array.reshape(-1).view(np.uint8).data
    return raw
