"""Saves that are killed, or refused by the disk, at every system call; damage at random.

`strace` brings the faults: it lets one system call of a process fail, or kills it there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from benchmarks.machines import no_mounts, small_disk
from tests.support.traced_saves import (
    BROKEN,
    FULL,
    KILL,
    TracedSaves,
    groups,
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
    felt, found = sweep(traced, tmp_path, names, fault, most)
    assert set(found) == {""}
    assert felt > len(found) / 2, "most faults are felt, or the sweep shows nothing"
    return len(found)


@pytest.mark.behaviour(number=45)
@needs_strace
@pytest.mark.fault("F17", "F18")
@pytest.mark.parametrize(("names", "fault"), [("best", KILL), ("6", FULL)])
def test_wherever_a_save_is_killed_or_refused_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path, names: str, fault: str
) -> None:
    assert swept(traced, tmp_path, names, fault, 16) == 16


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.fault("F17", "F18")
@pytest.mark.parametrize("fault", [KILL, FULL, BROKEN])
@pytest.mark.parametrize(
    "names", ["6,best,7,best,8", "other,6,7,8,best", "6,6,best,best,7", "9,5,best,10,other"]
)
def test_row_of_saves_that_ends_at_any_system_call(
    traced: TracedSaves, tmp_path: Path, names: str, fault: str
) -> None:
    assert swept(traced, tmp_path, names, fault, None) >= 120


@pytest.mark.fault("F17")
@pytest.mark.skipif(bool(no_mounts()), reason=no_mounts())
def test_disk_that_is_really_full_costs_the_new_checkpoint_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1M") as disk:
        checkpointer = Checkpointer(disk / "run")
        checkpointer.save("1", groups(1), {})
        large = {"model": {"weight": np.ones(1 << 18)}}
        before = sorted(path.name for path in (disk / "run").iterdir())
        with pytest.raises(CheckpointError, match=r"/2: No space left on device"):
            checkpointer.save("2", large, {})
        assert sorted(path.name for path in (disk / "run").iterdir()) == before
        checkpointer.save("3", groups(3), {})
        assert value_of(checkpointer.load("1")) == 1
        assert value_of(checkpointer.load_latest()) == 3


# --- damage --------------------------------------------------------------------------------------
