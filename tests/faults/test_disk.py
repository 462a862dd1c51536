"""Saves that are killed, or refused by the disk, at every system call; damage at random.

`strace` brings the faults: it lets one system call of a process fail, or kills it there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from benchmarks.chaos.corruption import unnoticed
from benchmarks.chaos.traced_saves import (
    BROKEN,
    FULL,
    KILL,
    TracedSaves,
    groups,
    prepared,
    sweep,
    traced_saves,
    value_of,
)

pytestmark = pytest.mark.processes

needs_strace = pytest.mark.skipif(
    not shutil.which("strace"), reason="strace, which injects the faults, is not installed"
)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedSaves]:
    with traced_saves(tmp_path) as saves:
        yield saves


def swept(traced: TracedSaves, tmp_path: Path, names: str, fault: str, most: int | None) -> int:
    """Return at how many system calls the fault left all whole."""
    found = sweep(traced, tmp_path, names, fault, most)
    assert found.broken == []
    assert found.felt > found.points / 2, "most faults are felt, or the sweep shows nothing"
    return found.points


@needs_strace
@pytest.mark.fault("F18")
@pytest.mark.parametrize("name", ["6", "best"])
def test_wherever_a_save_is_killed_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path, name: str
) -> None:
    assert swept(traced, tmp_path, name, KILL, 30) >= 20


@needs_strace
@pytest.mark.fault("F17")
@pytest.mark.parametrize("fault", [FULL, BROKEN])
def test_wherever_the_disk_refuses_a_save_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path, fault: str
) -> None:
    assert swept(traced, tmp_path, "6", fault, 30) >= 20


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.fault("F17", "F18")
@pytest.mark.parametrize("fault", [KILL, FULL, BROKEN])
@pytest.mark.parametrize("names", ["6,best,7,best,8", "other,6,7,8,best"])
def test_row_of_saves_that_ends_at_any_system_call(
    traced: TracedSaves, tmp_path: Path, names: str, fault: str
) -> None:
    assert swept(traced, tmp_path, names, fault, None) >= 120


@needs_strace
@pytest.mark.fault("F19")
def test_data_reaches_the_disk_before_it_is_shown(traced: TracedSaves, tmp_path: Path) -> None:
    assert traced.save(prepared(tmp_path / "run"), "best", 2) == 0
    done: list[str] = []
    for call, arguments in traced.calls():
        path = re.search(r"<(.*?)>", arguments)
        if call == "fsync" and path:
            place = Path(path[1]).relative_to(tmp_path / "run").as_posix()
            done.append("run" if place == "." else place.split("/")[-1].split("-")[0])
        elif call.startswith("rename"):
            done.append("switch")
    files = ["agent.safetensors", "model.safetensors", "manifest.json"]
    assert done == ["run", *files, ".asyncrl", "switch", "run"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(disk)]
    if (
        not shutil.which("mount")
        or subprocess.run(mounting, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may mount no file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.fault("F17")
def test_disk_that_is_really_full_costs_the_new_checkpoint_only(small_disk: Path) -> None:
    checkpointer = Checkpointer(small_disk / "run")
    checkpointer.save("1", groups(1), {})
    large = {"model": {"weight": np.ones(1 << 18)}}
    before = sorted(path.name for path in (small_disk / "run").iterdir())
    with pytest.raises(CheckpointError, match=r"/2: No space left on device"):
        checkpointer.save("2", large, {})
    assert sorted(path.name for path in (small_disk / "run").iterdir()) == before
    checkpointer.save("3", groups(3), {})
    assert value_of(checkpointer.load("1")) == 1
    assert value_of(checkpointer.load_latest()) == 3


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.fault("F20")
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_damage_goes_unnoticed_nor_is_anything_built_of_it(tmp_path: Path, count: int) -> None:
    assert unnoticed(tmp_path, count) == []
