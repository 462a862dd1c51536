"""Named arrays in a file of the safetensors format, written piece by piece and hashed on the way.

The library packs all arrays into one string first, which for a full replay would take its memory
twice. The format is a header in JSON, after its length in 8 bytes, and then the arrays' bytes:
https://github.com/huggingface/safetensors#format. Reading is left to the library, or, for what is
too large to be in memory twice, to the system's memory map.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from asyncrl.errors import CheckpointError
from asyncrl.types import Array, Params

__all__ = [
    "Digest",
    "digest_of",
    "let_go",
    "map_arrays",
    "read_arrays",
    "write_arrays",
    "write_file",
]

Digest = dict[str, Any]
"""Size and sha256 of a file."""

_CHUNK_BYTES = 16 << 20

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
"""numpy's names of the dtypes that may be saved, and the format's."""

_DTYPES = {code: np.dtype(name) for name, code in _NAMES.items()}


def write_arrays(path: Path, arrays: Params) -> Digest:
    """Write a new file, on disk when this returns; raise `CheckpointError` on what cannot be."""
    plain = {name: _checked(f"{path.stem}/{name}", arrays[name]) for name in arrays}
    return write_file(path, _pieces(plain))


def write_file(path: Path, pieces: Iterator[bytes | memoryview]) -> Digest:
    """Write a new file, readable by its owner alone and on disk when this returns."""
    sha256, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            sha256.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(descriptor)
    return {"size": size, "sha256": sha256.hexdigest()}


def digest_of(path: Path) -> Digest:
    """Return size and hash of a file as it is now."""
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
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path.name} does not hold arrays: {error}") from error
    return arrays


def map_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file whose digest has been checked, read-only and left in the file.

    They take memory as they are read, until `let_go`. The file may be deleted meanwhile.
    """
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass  # a header that contradicts itself, or the file's size, is refused
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8:start])
        header.pop("__metadata__", None)
        return {name: _mapped(mapped, start, entry) for name, entry in header.items()}
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path.name} does not hold arrays: {error}") from error


def let_go(arrays: Iterable[Array]) -> None:
    """Take mapped arrays out of this process's memory; what is read of them comes back."""
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)


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
    header: dict[str, object] = {}
    end = 0
    # The format wants each array to begin where the one before ended, at a multiple of its item.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in names:
        array = arrays[name]
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if arrays[name].nbytes:
            raw = arrays[name].reshape(-1).view(np.uint8).data
            for first in range(0, len(raw), _CHUNK_BYTES):
                yield raw[first : first + _CHUNK_BYTES]
