"""Cores that a process may use, all of the machine's or those that a CPU quota leaves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from asyncrl.metrics.limits import ControlGroups
from asyncrl.metrics.system import Cores
from tests.metrics.test_limits import Machine, cpu_v2, v2

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def groups(root: Path, files: dict[str, str]) -> ControlGroups:
    Machine(mounts=(v2(),), groups=("0::/",), files={"": files}).write(root)
    return ControlGroups(root)


@pytest.mark.parametrize("files", [{}, cpu_v2("99999900000 100000")])
def test_without_a_quota_that_limits_they_are_those_of_the_affinity(
    files: dict[str, str], tmp_path: Path
) -> None:
    cores = Cores(groups(tmp_path, files))
    assert (cores.count, cores.affinity, cores.share, cores.quota) == (ALL, ALL, ALL, None)


def test_quota_allows_part_of_them(tmp_path: Path) -> None:
    cores = Cores(groups(tmp_path, cpu_v2("50000 100000")))
    assert (cores.count, cores.affinity, cores.share) == (1, ALL, 0.5)


class Times(NamedTuple):
    user: float
    idle: float
    iowait: float = 0.0
    guest: float = 0.0


def test_busy_seconds_are_those_that_no_core_was_idle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cores = Cores(groups(tmp_path, {}))
    times = Times(user=5.0, idle=7.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda **_: [times] * (os.cpu_count() or 1))
    before = cores.times(0.0)
    times = Times(user=6.0, idle=8.0, iowait=2.0, guest=0.5)
    after = cores.times(0.0)
    n = cores.affinity
    assert after.busy_s - before.busy_s == pytest.approx(1.0 * n)
    assert after.total_s - before.total_s == pytest.approx(4.0 * n), (
        "user time includes that of guests"
    )


def test_under_a_quota_the_groups_own_use_counts(tmp_path: Path) -> None:
    cores = Cores(groups(tmp_path, cpu_v2("50000 100000")))
    before = cores.times(10.0)
    (tmp_path / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 3500000\n")
    after = cores.times(14.0)
    assert after.busy_s - before.busy_s == pytest.approx(1.0)
    assert after.total_s - before.total_s == pytest.approx(2.0), "half a core for 4 seconds"
