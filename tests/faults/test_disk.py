"""Saves that are killed, or refused by the disk, at every system call; damage at random.

`strace` brings the faults: it lets one system call of a process fail, or kills it there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest

from asyncrl.checkpoint import checkpoint
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from benchmarks.machines import no_mounts, small_disk
from tests.support import scale
from tests.support.traced_saves import (
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
    felt, found = sweep(traced, tmp_path, names, fault, most)
    assert set(found) == {""}
    assert felt > len(found) / 2, "most faults are felt, or the sweep shows nothing"
    return len(found)


@pytest.mark.behaviour(number=45)
@needs_strace
@pytest.mark.fault("F18")
def test_wherever_a_save_is_killed_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path
) -> None:
    assert swept(traced, tmp_path, "best", KILL, 16) == 16


@needs_strace
@pytest.mark.fault("F17")
def test_wherever_the_disk_refuses_a_save_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path
) -> None:
    assert swept(traced, tmp_path, "6", FULL, 16) == 16


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


@pytest.mark.fault("F17")
@pytest.mark.skipif(bool(no_mounts()), reason=no_mounts())
def test_disk_that_is_really_full_costs_the_new_checkpoint_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1M") as disk:
        only_the_new_checkpoint_is_lost(disk)


def only_the_new_checkpoint_is_lost(disk: Path) -> None:
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


@pytest.mark.timeout(1200)
@pytest.mark.fault("F20")
def test_no_damage_goes_unnoticed_nor_is_anything_built_of_it(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("90", groups(90), {"opt_steps": 90})
    good = checkpointer.save("100", groups(100), {"opt_steps": 100})
    generator = np.random.default_rng(0)
    for file in good.iterdir():
        whole = file.read_bytes()
        for start in generator.integers(len(whole), size=2000 if scale.full else 30):
            end = int(generator.integers(start, len(whole))) + 1
            changed = bytes(255 - byte for byte in whole[start:end])
            rest = whole[end:] if generator.random() < 0.7 else b""
            file.write_bytes(whole[:start] + changed + rest)
            built = Mock(side_effect=AssertionError("it builds arrays"))
            with (
                patch.object(checkpoint, "read_arrays", built),
                pytest.raises(CheckpointError, match=f"{file.name} .*also there"),
            ):
                checkpointer.load("100")
            assert value_of(checkpointer.load_latest()) == 90
        file.write_bytes(whole)
