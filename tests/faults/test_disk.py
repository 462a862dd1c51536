"""Saves that are killed, or refused by the disk, at every system call; damage at random.

`strace` brings the faults: it lets one system call of a process fail, or kills it there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from asyncrl.checkpoint import array_file, checkpoint
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array
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

WAYS = ("flip", "cut", "zeros", "swap", "insert", "noise")

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


def damage(path: Path, other: Path, generator: np.random.Generator) -> str:
    """Change a file at random; return how, or nothing if it is unchanged."""
    data = path.read_bytes()
    at = int(generator.integers(len(data)))
    way = str(generator.choice(WAYS))
    changed = _changed(data, at, way, other.read_bytes(), generator)
    if changed == data:
        return ""
    path.write_bytes(changed)
    return f"{way} at {at} of {path.name}"


def _changed(data: bytes, at: int, way: str, other: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(data)
    match way:
        case "flip":
            changed[at] ^= 1 << int(generator.integers(8))
        case "cut":
            del changed[at:]
        case "zeros":
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        case "swap":
            changed = bytearray(other)
        case "insert":
            changed[at:at] = generator.bytes(int(generator.integers(1, 9)))
        case _:
            changed[at:] = generator.bytes(len(data) - at)
    return bytes(changed)


def unnoticed(directory: Path, count: int) -> list[str]:
    """Damage the newer of two checkpoints repeatedly; return what went wrong, and how."""
    checkpointer = Checkpointer(directory)
    checkpointer.save("90", groups(90), {"opt_steps": 90})
    good = checkpointer.save("100", groups(100), {"opt_steps": 100})
    files = sorted(good.iterdir())
    whole = {path: path.read_bytes() for path in files}
    generator = np.random.default_rng(0)
    wrong: list[str] = []
    done = 0
    while done < count:
        i, j = generator.choice(len(files), 2, replace=False)
        if how := damage(files[i], files[j], generator):
            wrong += [f"{how}: {what}" for what in _faults(checkpointer, files[i])]
            files[i].write_bytes(whole[files[i]])
            done += 1
    return wrong


def _faults(checkpointer: Checkpointer, damaged: Path) -> list[str]:
    """Load with one file damaged; return what should not have happened."""
    wrong: list[str] = []

    def read_watched(path: Path) -> Mapping[str, Array]:
        if path.parent.samefile(damaged.parent):
            wrong.append(f"built arrays of {path.name}")
        return array_file.read_arrays(path)

    with patch.object(checkpoint, "read_arrays", read_watched):
        try:
            checkpointer.load("100")
        except CheckpointError as error:
            if damaged.name not in str(error).partition("also there")[0]:
                wrong.append(f"{damaged.name} is not named")
        else:
            wrong.append("it was loaded")
        with suppress(CheckpointError):
            if value_of(checkpointer.load_latest()) == 90:
                return wrong
    return [*wrong, "the one before was not found"]


@pytest.mark.timeout(1200)
@pytest.mark.fault("F20")
def test_no_damage_goes_unnoticed_nor_is_anything_built_of_it(tmp_path: Path) -> None:
    assert unnoticed(tmp_path, 10_000 if scale.full else 200) == []
