"""How many processor cores there are for this process, and how busy they are."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")


class CoreTimes(NamedTuple):
    """Core seconds; only differences between two of them mean anything."""

    busy_s: float
    """Spent by anything."""

    total_s: float
    """That there were to be spent."""


class Cores:
    """The cores that this process may use: its affinity, or less where a container has a quota.

    Args:
        cgroup: Where Linux tells what a container may use.
    """

    def __init__(self, cgroup: Path = _CGROUP) -> None:
        self._numbers = _numbers()
        self._cgroup = cgroup
        quota = _quota(cgroup)
        self._quota = quota if quota is not None and quota < len(self._numbers) else None

    @property
    def count(self) -> int:
        """How many threads can be at work at once; at least 1."""
        return len(self._numbers) if self._quota is None else math.ceil(self._quota)

    def times(self, clock_s: float) -> CoreTimes:
        """Read how busy they have been up to now, which `clock_s` says."""
        if self._quota is not None:
            return CoreTimes(_used_s(self._cgroup), self._quota * clock_s)
        cores = psutil.cpu_times(percpu=True)
        mine = [cores[i] for i in self._numbers if i < len(cores)] or cores
        total_s = sum(_seconds(core) for core in mine)
        idle_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in mine)
        return CoreTimes(total_s - idle_s, total_s)


def _numbers() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _quota(cgroup: Path) -> float | None:
    """Return how many cores' time a container may take; None if that is not limited."""
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        return None


def _used_s(cgroup: Path) -> float:
    try:
        lines = (cgroup / "cpu.stat").read_text(encoding="ascii").splitlines()
        times = dict(line.split() for line in lines)
        return float(times["usage_usec"]) / 1e6
    except (OSError, ValueError, KeyError):
        return 0.0


def _seconds(core: Any) -> float:  # noqa: ANN401 - its fields differ between systems
    # What guests use is counted as `user` and `nice` already.
    return float(sum(core)) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)
