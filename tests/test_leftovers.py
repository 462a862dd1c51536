"""Shared memory counts as left over unless a process uses it; processes unless Python does."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.leftovers import added_shared_memory, children, shared_memory

pytestmark = pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or not Path("/proc/self/maps").exists(),
    reason="only Linux shows who uses what",
)

DEADLINE_S = 30.0


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


def test_children_are_those_that_a_test_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert [p.pid for p in children()] == [child.pid]
        child.kill()
