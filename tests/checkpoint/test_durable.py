"""What is made is on disk, with each name that leads to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.directory import DirectoryLock, make_directory


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of what has been written to disk, in order."""
    inodes: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        inodes.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return inodes


def lock(directory: Path) -> None:
    """Make the directory of a run's checkpoints, as a run does before it saves any."""
    DirectoryLock(directory)


def save(directory: Path) -> None:
    """Save a checkpoint without a run."""
    Checkpointer(directory).save("1", {}, {})


@pytest.mark.fault("F19")
@pytest.mark.parametrize("make", [make_directory, lock, save])
def test_names_of_new_directories_are_on_disk(
    make: Callable[[Path], None], tmp_path: Path, synced: list[int]
) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "runs/x/checkpoints")
    finally:
        os.umask(before)
    names = [tmp_path, tmp_path / "runs", tmp_path / "runs/x"]
    assert {path.stat().st_ino for path in names} <= set(synced)
    made = [*names[1:], tmp_path / "runs/x/checkpoints"]
    assert {S_IMODE(path.stat().st_mode) for path in made} == {0o700}


def test_existing_directory_stays_unchanged(tmp_path: Path, synced: list[int]) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    mode = (tmp_path / "shared").stat().st_mode
    make_directory(tmp_path / "shared")
    assert (tmp_path / "shared").stat().st_mode == mode
    assert not synced
