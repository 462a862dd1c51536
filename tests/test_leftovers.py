"""Shared memory counts as left over unless a process uses it; processes unless Python does."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from tests.support.helpers import wait_until
from tests.support.leftovers import added_shared_memory, children, shared_memory

pytestmark = pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or not Path("/proc/self/maps").exists(),
    reason="only Linux shows who uses what",
)

DEADLINE_S = 30.0

HOLDS_A_SEMAPHORE = """
import multiprocessing, os, sys
lock = multiprocessing.get_context("spawn").Lock()
print(os.getpid(), "/dev/shm/sem." + lock._semlock.name.removeprefix("/"), flush=True)
sys.stdin.read()
"""


@contextmanager
def orphan(environment: dict[str, str]) -> Iterator[Path]:
    """Let an orphaned process hold a semaphore, and return where that is."""
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", start, HOLDS_A_SEMAPHORE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout
        assert parent.stdin
        pid, path = parent.stdout.readline().split()
        parent.wait(DEADLINE_S)
        try:
            assert Path(path).exists()
            assert psutil.Process(int(pid)) not in psutil.Process().children(recursive=True)
            yield Path(path)
        finally:
            parent.stdin.close()
            wait_until(lambda: not Path(path).exists(), DEADLINE_S, "the semaphore to be removed")


def test_unused_names_are_counted() -> None:
    before = shared_memory()
    left = Path("/dev/shm/tests-left-over")
    left.touch()
    try:
        assert left in added_shared_memory(before)
        assert left not in added_shared_memory({*before, left})
    finally:
        left.unlink()
    assert left not in added_shared_memory(before)


def test_what_a_test_itself_uses_counts() -> None:
    before = shared_memory()
    used = Path("/dev/shm/tests-in-use")
    used.write_bytes(bytes(100))
    try:
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 100):
            assert str(used) in Path("/proc/self/maps").read_text()
            assert used in added_shared_memory(before)
    finally:
        used.unlink()


def test_what_a_test_has_started_counts_also_without_a_parent() -> None:
    before = shared_memory()
    with orphan(dict(os.environ)) as semaphore:
        assert semaphore in added_shared_memory(before)


def test_what_another_process_uses_does_not_count(tmp_path: Path) -> None:
    before = shared_memory()
    with orphan({**os.environ, "TMPDIR": str(tmp_path)}) as semaphore:
        assert semaphore in shared_memory()
        assert semaphore not in added_shared_memory(before)


@pytest.mark.usefixtures("tracker_ends")
def test_what_python_keeps_is_no_child_of_a_test() -> None:
    resource_tracker.ensure_running()
    tracker = psutil.Process(resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    # A process that has just been started has no command line for a moment.
    wait_until(lambda: "resource_tracker" in " ".join(tracker.cmdline()), 10.0, "its command line")
    assert tracker in psutil.Process().children()
    assert tracker not in children(recursive=True)


def test_children_are_those_that_a_test_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert [p.pid for p in children()] == [child.pid]
        child.kill()
