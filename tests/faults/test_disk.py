"""Saves that are killed, or refused by the disk, at every system call; damage at random.

`strace` brings the faults: it lets one system call of a process fail, or kills it there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncrl import array_file, checkpoint
from asyncrl.checkpoint import Checkpoint, Checkpointer
from asyncrl.errors import CheckpointError

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
CALLS = """openat mkdir mkdirat write pwrite64 writev fsync fdatasync rename renameat renameat2
    symlink symlinkat unlink unlinkat rmdir""".split()

needs_strace = pytest.mark.skipif(
    not shutil.which("strace"), reason="strace, which injects the faults, is not installed"
)

# Forks a child for each line it reads, which stops, and saves checkpoints once it may go on.
SAVER = """
import os, signal, sys
from pathlib import Path
from asyncrl.checkpoint import Checkpointer
from asyncrl.errors import CheckpointError
from tests.faults.test_disk import groups

def save(directory, names, value):
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        for name in names.split(","):
            Checkpointer(Path(directory), keep_last=1).save(name, groups(float(value)), {})
    except CheckpointError:
        os._exit(7)
    except BaseException:
        os._exit(1)
    os._exit(0)

for line in sys.stdin:
    child = os.fork()
    if not child:
        save(*line.split())
    os.waitpid(child, os.WUNTRACED)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def groups(value: float) -> dict[str, dict[str, np.ndarray]]:
    return {
        "agent": {"step": np.array(3), "moments": np.full((2, 3), value, np.float32)},
        "model": {"weight": np.full(4, value)},
    }


def value_of(found: Checkpoint) -> float:
    assert np.all(found.groups["agent"]["moments"] == found.groups["model"]["weight"][0])
    return float(found.groups["model"]["weight"][0])


class TracedSaves:
    """Saves checkpoints in processes of their own, under `strace`."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "strace.log"
        self._saver = subprocess.Popen(
            [sys.executable, "-c", SAVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def save(self, directory: Path, names: str, value: float, *inject: str) -> int:
        """Return the exit code of saves that are traced and may be spoiled."""
        assert self._saver.stdin
        assert self._saver.stdout
        print(directory, names, value, file=self._saver.stdin, flush=True)
        child = int(self._saver.stdout.readline())
        arguments = [f"--trace={','.join('?' + call for call in CALLS)}"]
        arguments += [f"--inject={expression}" for expression in inject]
        with subprocess.Popen(
            ["strace", "-y", "-o", self._log, "-p", str(child), *arguments],
            stderr=subprocess.PIPE,
            text=True,
        ) as tracer:
            assert tracer.stderr
            assert "attached" in (said := tracer.stderr.readline()), said
            os.kill(child, signal.SIGCONT)
            return int(self._saver.stdout.readline())

    def calls(self) -> list[tuple[str, str]]:
        """Return names and arguments of the calls of the last save."""
        found = re.findall(r"^(\w+)\((.*)\) += ", self._log.read_text(), re.MULTILINE)
        return [(name, arguments) for name, arguments in found if name in CALLS]

    def close(self) -> None:
        assert self._saver.stdin
        assert self._saver.stdout
        self._saver.stdin.close()
        self._saver.wait(DEADLINE_S)
        self._saver.stdout.close()


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedSaves]:
    saves = TracedSaves(tmp_path)
    yield saves
    saves.close()


def prepared(directory: Path) -> Path:
    """Return a directory with two checkpoints, and the leftovers of a save that was killed."""
    for name in ("5", "best"):
        Checkpointer(directory).save(name, groups(1), {})
    shutil.copytree(directory / "best", directory / ".data-left-over")
    return directory


def points(traced: TracedSaves, tmp_path: Path, names: str) -> list[tuple[str, int]]:
    """Return each system call of saves that go well: its name, and its number among those."""
    assert traced.save(prepared(tmp_path / "well"), names, 2) == 0
    count: Counter[str] = Counter()
    for call, _ in traced.calls():
        count[call] += 1
    return [(call, i) for call, number in count.items() for i in range(1, number + 1)]


def some_of(found: list[tuple[str, int]], most: int | None) -> list[tuple[str, int]]:
    """Return at most so many, evenly taken."""
    if most is None:
        return found
    return [found[i] for i in np.unique(np.linspace(0, len(found) - 1, most, dtype=int))]


def check(directory: Path, name: str, code: int) -> None:
    """See that whatever is there is whole, and that the next save goes well."""
    checkpointer = Checkpointer(directory, keep_last=1)
    assert set(checkpointer.names()) >= {"best"}
    values = {each: value_of(checkpointer.load(each)) for each in checkpointer.names()}
    assert set(values.values()) <= {1, 2}
    value_of(checkpointer.load_latest())
    if code == 0:
        assert values[name] == 2
    checkpointer.save(name, groups(3), {})
    assert value_of(checkpointer.load(name)) == 3
    hidden = [path for path in directory.iterdir() if path.name.startswith(".")]
    assert len(hidden) == len(checkpointer.names()), "nothing is left over"


def sweep(traced: TracedSaves, tmp_path: Path, names: str, fault: str, most: int | None) -> int:
    found = some_of(points(traced, tmp_path, names), most)
    failed = 0
    for number, (call, index) in enumerate(found):
        directory = prepared(tmp_path / str(number))
        code = traced.save(directory, names, 2, f"{call}:{fault}:when={index}")
        assert code in ({-9} if "KILL" in fault else {0, 7}), (
            f"{call} number {index} ended in {code}"
        )
        check(directory, names.rsplit(",", maxsplit=1)[-1], code)
        failed += code != 0
        shutil.rmtree(directory)
    assert failed > len(found) / 2, "most faults are felt, or the sweep shows nothing"
    return len(found)


KILL, FULL, BROKEN = "signal=SIGKILL", "error=ENOSPC", "error=EIO"


@needs_strace
@pytest.mark.fault("F18")
@pytest.mark.parametrize("name", ["6", "best"])
def test_wherever_a_save_is_killed_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path, name: str
) -> None:
    assert sweep(traced, tmp_path, name, KILL, 30) >= 20


@needs_strace
@pytest.mark.fault("F17")
@pytest.mark.parametrize("fault", [FULL, BROKEN])
def test_wherever_the_disk_refuses_a_save_the_newest_checkpoint_is_whole(
    traced: TracedSaves, tmp_path: Path, fault: str
) -> None:
    assert sweep(traced, tmp_path, "6", fault, 30) >= 20


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.fault("F17", "F18")
@pytest.mark.parametrize("fault", [KILL, FULL, BROKEN])
@pytest.mark.parametrize("names", ["6,best,7,best,8", "other,6,7,8,best"])
def test_row_of_saves_that_ends_at_any_system_call(
    traced: TracedSaves, tmp_path: Path, names: str, fault: str
) -> None:
    assert sweep(traced, tmp_path, names, fault, None) >= 120


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
    assert done == ["run", *files, ".data", "switch", "run"]


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


def damage(path: Path, other: Path, generator: np.random.Generator) -> str:
    """Change a file at random; return how."""
    data = path.read_bytes()
    at = int(generator.integers(len(data)))
    changed = bytearray(data)
    match way := generator.choice(["flip", "cut", "zeros", "swap", "insert", "noise"]):
        case "flip":
            changed[at] ^= 1 << int(generator.integers(8))
        case "cut":
            del changed[at:]
        case "zeros":
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        case "swap":
            changed = bytearray(other.read_bytes())
        case "insert":
            changed[at:at] = generator.bytes(int(generator.integers(1, 9)))
        case "noise":
            changed[at:] = generator.bytes(len(data) - at)
    if bytes(changed) == data:
        return ""
    path.write_bytes(bytes(changed))
    return f"{way} at {at}"


def check_damages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("90", groups(90), {"opt_steps": 90})
    good = checkpointer.save("100", groups(100), {"opt_steps": 100})
    files = sorted(good.iterdir())
    whole = {path: path.read_bytes() for path in files}
    generator = np.random.default_rng(0)
    read_arrays = array_file.read_arrays

    def read_whole(path: Path) -> dict[str, np.ndarray]:
        assert path.parent.resolve() != good.resolve(), "built arrays of a damaged checkpoint"
        return read_arrays(path)

    monkeypatch.setattr(checkpoint, "read_arrays", read_whole)
    done = 0
    while done < count:
        path, other = generator.choice(len(files), 2, replace=False)
        how = damage(files[path], files[other], generator)
        if how:
            with pytest.raises(CheckpointError, match=f"/100: .*{re.escape(files[path].name)}"):
                checkpointer.load("100")
            assert value_of(checkpointer.load_latest()) == 90, how
            files[path].write_bytes(whole[files[path]])
            done += 1


@pytest.mark.fault("F20")
def test_no_damage_goes_unnoticed_nor_is_anything_built_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_damages(tmp_path, monkeypatch, 500)


@pytest.mark.slow
@pytest.mark.fault("F20")
def test_no_damage_of_very_many_goes_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_damages(tmp_path, monkeypatch, 10_000)
