"""Cores that a process may use, all of the machine's or those that a container leaves it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from asyncrl.metrics.system import Cores

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\n")
    return tmp_path


def test_without_a_quota_they_are_those_of_the_affinity(tmp_path: Path) -> None:
    assert Cores(tmp_path).count == ALL
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert Cores(tmp_path).count == ALL


@pytest.mark.parametrize(("quota", "count"), [("50000 100000", 1), ("90000 100000", 1)])
def test_quota_leaves_so_many(quota: str, count: int, cgroup: Path) -> None:
    (cgroup / "cpu.max").write_text(f"{quota}\n")
    assert Cores(cgroup).count == count


@pytest.mark.parametrize("text", ["", "many 100000", "1", "99999900000 100000"])
def test_quota_that_limits_nothing_or_says_nothing_is_none(text: str, cgroup: Path) -> None:
    (cgroup / "cpu.max").write_text(text)
    assert Cores(cgroup).count == ALL


def test_busy_seconds_grow_with_work_and_never_beyond_what_there_was(tmp_path: Path) -> None:
    cores = Cores(tmp_path)
    before = cores.times(time.monotonic())
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    after = cores.times(time.monotonic())
    busy_s, total_s = after.busy_s - before.busy_s, after.total_s - before.total_s
    assert 0.0 < busy_s <= total_s + 0.1  # the system counts in hundredths of a second


def test_under_a_quota_the_containers_own_use_counts(cgroup: Path) -> None:
    (cgroup / "cpu.max").write_text("50000 100000\n")
    cores = Cores(cgroup)
    before = cores.times(10.0)
    (cgroup / "cpu.stat").write_text("usage_usec 3500000\n")
    after = cores.times(14.0)
    assert after.busy_s - before.busy_s == pytest.approx(1.0)
    assert after.total_s - before.total_s == pytest.approx(2.0), "half a core for 4 seconds"


def test_container_that_does_not_tell_its_use_looks_idle(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert Cores(tmp_path).times(1.0).busy_s == 0.0
