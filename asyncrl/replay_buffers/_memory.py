"""Room for a ring's columns: how much there is, refusing more than that, and the arrays.

Memory that is reserved is not yet used: a ring that is too large would be killed hours later, when
it has filled. So it is refused before anything starts.
"""

from __future__ import annotations

import math
import mmap
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of each array -> its shape and dtype."""

_CGROUP = Path("/sys/fs/cgroup")


def check_room(what: str, *, in_memory: int, in_file: int, directory: Path | None) -> None:
    """Refuse what does not fit.

    Args:
        what: The setting that asks for so much, for the message.
        in_memory: Bytes of memory.
        in_file: Bytes in a file.
        directory: Where that file will be; None if there is none.
    """
    available = available_bytes()
    if in_memory > available:
        other = "" if directory else ", or keep it in a file (replay.memory_map)"
        raise ConfigError(
            f"{what} needs {shown_bytes(in_memory)} of memory, and {shown_bytes(available)} are "
            "available; make replay.capacity smaller, look less far ahead (replay.n_step, "
            "sequences) or cut longer segments (segment.length), each of which repeats what it "
            f"looks at{other}"
        )
    if directory is None:
        return
    if not directory.is_dir():
        raise ConfigError(f"replay.memory_map={str(directory)!r} is no directory; make it first")
    free = shutil.disk_usage(directory).free
    if in_file > free:
        raise ConfigError(
            f"{what} needs a file of {shown_bytes(in_file)}, and {shown_bytes(free)} are free in "
            f"{directory}; make replay.capacity smaller, or give a directory of another disk"
        )


def available_bytes() -> int:
    """Return the memory that this process may still take: the machine's, or its control group's."""
    return min(psutil.virtual_memory().available, *_cgroup_rooms(), 1 << 62)


def allocate(shapes: Shapes, directory: Path | None) -> dict[str, Array]:
    """Return arrays of zeros; their memory, or their file's blocks, are taken as they are written.

    The file has no name any more when this returns, so nothing is left of it however we end.
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


def _cgroup_rooms() -> list[int]:
    """Return what is left of the limits of this process's control groups (Linux, version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    own = next((line.partition("::/")[2] for line in lines if line.startswith("0::/")), "")
    group = _CGROUP / own
    # In a container the path may be the host's; then the root is the container's own group.
    chain = [group, *group.parents] if group.is_dir() else [_CGROUP]
    return [room for g in chain if (room := _room_of(g)) is not None]


def _room_of(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").split()
    except OSError:
        return None
    if limit == "max":
        return None
    cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
    return max(0, int(limit) - used + cached)


def shown_bytes(size: int) -> str:
    """Return a size in words, for messages."""
    return f"{size:,} bytes ({rounded_bytes(size)})"


def rounded_bytes(size: int) -> str:
    """Return a size in the unit that suits it."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
