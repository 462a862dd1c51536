"""Settings of a ring, and its size in bytes before it is built."""

from __future__ import annotations

import logging
import math
import mmap
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from asyncrl.core.agent import BatchKind
from asyncrl.core.declared import COMMON, Count, Share, check_declared
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import PART_BYTES
from asyncrl.core.segment import ColumnSpec, SegmentSchema
from asyncrl.core.types import Array
from asyncrl.metrics import limits

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of each array -> its shape and dtype."""


def check_room(what: str, *, in_memory: int, in_file: int, directory: Path | None) -> None:
    """Raise if the replay does not fit into memory or on disk.

    Args:
        what: The setting to name in the error.
        in_memory: Bytes of memory.
        in_file: Bytes in a file.
        directory: Directory of that file; None without a file.
    """
    memory = limits.memory()
    if in_memory > memory.left:
        limit = f" of {rounded_bytes(memory.limit)} ({memory.by})" if memory.by else ""
        other = "" if directory else ", or keep it in a file (replay.memory_map)"
        raise ConfigError(
            f"{what} needs {shown_bytes(in_memory)} of memory, and {shown_bytes(memory.left)} are "
            f"available{limit}; reduce replay.capacity, look less far ahead (replay.n_step, "
            "sequences) or use longer segments (segment.length), since each segment repeats the "
            f"rows it looks ahead to{other}"
        )
    if directory is None:
        return
    if not directory.is_dir():
        raise ConfigError(
            f"replay.memory_map={str(directory)!r} is not a directory; create it first"
        )
    free = shutil.disk_usage(directory).free
    if in_file > free:
        raise ConfigError(
            f"{what} needs a file of {shown_bytes(in_file)}, and {shown_bytes(free)} are free in "
            f"{directory}; reduce replay.capacity, or give a directory on another disk"
        )


def allocate(shapes: Shapes, directory: Path | None) -> dict[str, Array]:
    """Return arrays of zeros. Memory, or the file's blocks, are allocated as they are written.

    The file is unlinked when this returns, so nothing remains of it however the process ends.
    """
    if directory is None:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    starts: dict[str, int] = {}
    end = 0
    for name, (shape, dtype) in shapes.items():
        starts[name] = end
        size = math.prod(shape) * np.dtype(dtype).itemsize
        end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    with tempfile.TemporaryFile(dir=directory) as file:
        file.truncate(end)
        mapped = mmap.mmap(file.fileno(), end)
    return {
        name: np.ndarray(shape, dtype, mapped, starts[name])
        for name, (shape, dtype) in shapes.items()
    }


def shown_bytes(size: int) -> str:
    """Return a size as text, for messages."""
    return f"{size:,} bytes ({rounded_bytes(size)})"


def rounded_bytes(size: int) -> str:
    """Return a size in a suitable unit."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


logger = logging.getLogger(__name__)

_MANY_TIMES = 2.0
"""How often segments may store a row before it is worth a word."""

_NARROW_BYTES = 64
"""Columns with rows of at most this many bytes stay on the host and are copied with the batch.
Flags, rewards and priorities are among them, because the host computes with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingConfig:
    """Size of the replay, where it is stored, and how returns are computed."""

    capacity: Annotated[Count, COMMON] = 100_000
    """Maximum number of transitions. New ones overwrite the oldest."""

    n_step: Annotated[Count, COMMON] = 1
    """Steps of n-step returns: rewards summed up before bootstrapping."""

    gamma: Annotated[Share, COMMON] = 0.99
    """Discount factor per step."""

    memory_map: Path | None = None
    """Directory of a file that holds the columns instead of memory. The file is deleted with the
    run. It takes disk blocks as it fills, so keep enough disk space free: if the disk is full, the
    system kills the process. None uses memory."""

    device: str = "host"
    """Where observations and other wide columns are stored. `host`: in host memory, from which
    batches are copied to the learner's device. `cuda` or `cuda:N`: on that device, which gathers
    batches itself. `cpu` keeps torch tensors in host memory, to try the second way without a
    GPU."""

    batch_kind: ClassVar[BatchKind] = "transitions"

    def __post_init__(self) -> None:
        check_declared(self, "replay")
        if not re.fullmatch(r"host|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(
                f"replay.device must be host, cpu, cuda or cuda:N, got {self.device!r}"
            )
        if self.memory_map and self.device != "host":
            raise ConfigError(
                f"replay.device={self.device!r} keeps columns out of the file that "
                f"replay.memory_map={str(self.memory_map)!r} asks for; set only one of the two"
            )

    @property
    def once(self) -> bool:
        """Whether each transition is sampled once. Here it stays until newer ones overwrite it."""
        return False

    @property
    def lookahead(self) -> int:
        """Rows after a sampled one that its n-step return needs."""
        return self.n_step

    def nbytes(self, schema: SegmentSchema) -> int:
        """Return the total bytes of a replay of such segments before it is built."""
        return self.column_bytes(schema) + self.index_bytes(schema)

    def column_bytes(self, schema: SegmentSchema) -> int:
        """Return the bytes of the columns: the part that may be in a file or on a device."""
        return self.all_slots(schema) * schema.segment_bytes

    def index_bytes(self, schema: SegmentSchema) -> int:
        """Return the bytes of the index, which is always in memory."""
        return self.all_slots(schema) * (schema.length + 1) * np.dtype(np.int64).itemsize

    def memory_bytes(self, schema: SegmentSchema) -> int:
        """Return the bytes in host memory."""
        if self.memory_map:
            return self.index_bytes(schema)
        elsewhere = self.device.startswith("cuda")
        return self.nbytes(schema) - (self.wide_bytes(schema) if elsewhere else 0)

    def wide_bytes(self, schema: SegmentSchema) -> int:
        """Return the bytes of the wide columns."""
        rows = self.all_slots(schema) * schema.rows
        return rows * sum(column.row_bytes for column in self.wide_columns(schema))

    def wide_columns(self, schema: SegmentSchema) -> tuple[ColumnSpec, ...]:
        """Return the columns that are stored on a device; none without one."""
        if self.device == "host":
            return ()
        return tuple(
            column
            for column in schema.columns
            if column.name == "obs" or column.row_bytes > _NARROW_BYTES
        )

    def slots(self, schema: SegmentSchema) -> int:
        """Return the number of segments that fit."""
        check_holds_segment(self.capacity, schema)
        return self.capacity // schema.length

    def all_slots(self, schema: SegmentSchema) -> int:
        """Return the number of segments that fit, and of those that can be staged beside them."""
        slots = self.slots(schema)
        return slots + min(slots, max(1, PART_BYTES // schema.segment_bytes))


def check_holds_segment(capacity: int, schema: SegmentSchema) -> None:
    """Raise if one segment alone would exceed the capacity."""
    if capacity < schema.length:
        raise ConfigError(
            f"replay.capacity={capacity} has no room for one segment of {schema.length} "
            "transitions, and only whole segments are stored; set replay.capacity to at least "
            f"{schema.length}, or segment.length to at most {capacity}"
        )


def announce(config: RingConfig, schema: SegmentSchema) -> None:
    """Raise if the host has too little memory, and log how much is used."""
    in_file = config.column_bytes(schema) if config.memory_map else 0
    in_memory = config.memory_bytes(schema)
    check_room(
        f"replay.capacity={config.capacity}",
        in_memory=in_memory,
        in_file=in_file,
        directory=config.memory_map,
    )
    places = f"{rounded_bytes(in_memory)} of memory"
    if in_file:
        places += f" and {rounded_bytes(in_file)} in a file"
    times = schema.rows / schema.length
    stored = f"; segments of {schema.length} rows store each row {times:.2g} times"
    logger.info(
        "replay of %d transitions takes %s when it is full%s",
        config.slots(schema) * schema.length,
        places,
        stored if times > _MANY_TIMES else "",
    )
