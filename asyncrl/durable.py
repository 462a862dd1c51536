"""Directories and files that are still there, and whole, after a power cut."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Make a directory for its user alone, and what is missing above it; on disk on return.

    One that is there already stays as it is.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        with suppress(PermissionError):  # new names may be allowed there, and reading not
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
