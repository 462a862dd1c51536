"""What a run uses of the machine, and what is left. Knows nothing about the phases of a run."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import psutil

from asyncrl.core.recorder import Record
from asyncrl.metrics import limits
from asyncrl.metrics.limits import ControlGroups, Throttled


class CoreTimes(NamedTuple):
    """Core seconds; only differences between two readings have a meaning."""

    busy_s: float
    """Used by all programs."""

    total_s: float
    """Available in total."""


class Cores:
    """The cores that this process may use: its affinity, or its CPU quota if that is less.

    Args:
        groups: The control groups of this process; None reads them.
    """

    def __init__(self, groups: ControlGroups | None = None) -> None:
        self._numbers = _numbers()
        quota = (groups or ControlGroups()).quota()
        self.quota = quota if quota and quota.cores < len(self._numbers) else None
        """The CPU quota, if it allows less than the affinity."""

    @property
    def quota_cores(self) -> float | None:
        """CPU seconds per second that a control group allows; None if the affinity allows less."""
        return self.quota.cores if self.quota else None

    @property
    def affinity(self) -> int:
        """Number of cores that threads may run on."""
        return len(self._numbers)

    @property
    def share(self) -> float:
        """CPU seconds per second that the process may use."""
        return self.quota.cores if self.quota else float(self.affinity)

    @property
    def count(self) -> int:
        """Number of threads that can run at once; at least 1."""
        return math.ceil(self.share)

    def times(self, clock_s: float) -> CoreTimes:
        """Read how busy they have been until now; `clock_s` is the time now."""
        used_s = self.quota.used_s() if self.quota else None
        if used_s is not None:
            return CoreTimes(used_s, self.share * clock_s)
        cores = psutil.cpu_times(percpu=True)
        mine = [cores[i] for i in self._numbers if i < len(cores)] or cores
        total_s = sum(_seconds(core) for core in mine)
        idle_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in mine)
        return CoreTimes(total_s - idle_s, total_s)


def _numbers() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _seconds(core: Any) -> float:  # noqa: ANN401 - its fields differ between systems
    # `user` and `nice` already include the time of guests.
    return float(sum(core)) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)


_LIST_INTERVAL_S = 5.0
"""Seconds between two searches for children, which read every process of the machine."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it has started, so far."""
    used_s = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has exited meanwhile, and its parent's time includes it
            used_s += sum(child.cpu_times()[:4])
    return used_s


class Usage(NamedTuple):
    """Mean CPU use since a run began, in percent."""

    cpu_percent: float
    """Of one core, by this process."""

    machine_cpu_percent: float
    """Of all cores that this process may use, by all programs."""

    children_cpu_percent: float | None
    """Of one core, by the processes that this one has started; None if there were none."""

    throttled_percent: float | None
    """Share of the periods of its CPU quota in which it was used up; None without a quota."""


class Gpu(Protocol):
    """Reports the use of a device."""

    def record(self) -> Record:
        """Return its metrics."""
        ...


class SystemMeter:
    """Reads the use of processors, memory and GPU; 0.3 ms, and 2 ms more every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process = psutil.Process()
        self._groups = ControlGroups()
        self._cores = Cores(self._groups)
        self._gpu = find_gpu()
        self._children: list[psutil.Process] = []
        self._children_s: dict[int, float] = {}
        self._children_used_s = 0.0
        self.start()

    def start(self) -> None:
        """Start: `usage` and the next record count from now."""
        self._restarts: Record = {}
        self._first = self._last = self._read()
        self._listed_at = -math.inf
        self._read_children(seconds=1.0)
        self._children_used_s, self._children_read_at = 0.0, self._first.clock_s

    def record(self, among: Record | None = None) -> Record:
        """Return the metrics; CPU use is since the last record.

        If the other metrics of the record, `among`, show new actors, it searches for children now.
        """
        ends = ("/restarts", "/memory_restarts")
        restarts = {name: n for name, n in (among or {}).items() if name.endswith(ends)}
        if restarts != self._restarts:
            self._restarts, self._listed_at = restarts, -math.inf
        before, self._last = self._last, self._read()
        throttled = self._last.throttled_since(before)
        return {
            "system/cpu_percent": self._last.own_since(before),
            "system/rss_bytes": float(self._process.memory_info().rss),
            "system/machine_cpu_percent": self._last.busy_since(before),
            **({} if throttled is None else {"system/throttled_percent": throttled}),
            "system/available_bytes": float(limits.memory(self._groups).left),
            **self._read_children(self._last.clock_s - before.clock_s),
            **(self._gpu.record() if self._gpu else {}),
        }

    def usage(self) -> Usage:
        """Return the mean use since `start`; that of children until the last record."""
        now = self._read()
        children_s = self._children_read_at - self._first.clock_s
        return Usage(
            cpu_percent=now.own_since(self._first),
            machine_cpu_percent=now.busy_since(self._first),
            children_cpu_percent=(
                100 * self._children_used_s / children_s if children_s > 0 else None
            ),
            throttled_percent=now.throttled_since(self._first),
        )

    def _read(self) -> _Reading:
        own = self._process.cpu_times()
        clock_s = self._clock()
        quota = self._cores.quota
        return _Reading(
            clock_s,
            own.user + own.system,
            self._cores.times(clock_s),
            quota.throttled() if quota else None,
        )

    def _read_children(self, seconds: float) -> Record:
        """Return the use of all processes that this one has started, and of their children."""
        if self._clock() - self._listed_at >= _LIST_INTERVAL_S:
            self._listed_at = self._clock()
            self._children = self._process.children(recursive=True)
        before, self._children_s = self._children_s, {}
        rss = 0
        for child in self._children:
            try:
                with child.oneshot():
                    times = child.cpu_times()
                    rss += child.memory_info().rss
            except psutil.Error:  # it has exited meanwhile
                continue
            self._children_s[child.pid] = times.user + times.system
        if not self._children_s:
            return {}
        self._children_read_at = self._clock()
        self._children_used_s += sum(
            max(s - before.get(pid, 0.0), 0.0) for pid, s in self._children_s.items()
        )
        taken: Record = {"system/children_rss_bytes": float(rss)}
        # A process that was just found has run for a while: its first reading is only stored.
        if self._children_s.keys() <= before.keys():
            used_s = sum(s - before[pid] for pid, s in self._children_s.items())
            percent = 100 * max(used_s, 0.0) / max(seconds, 1e-9)
            taken = {**taken, "system/children_cpu_percent": percent}
        return taken


def find_gpu() -> Gpu | None:
    """Return the GPU that torch would use, if there is one and `nvidia-ml-py` is installed."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        if visible.isdecimal():
            return _NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(int(visible)))
        return _NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(visible))
    except Exception:  # no such module, driver or device: not an error
        return None


class _NvidiaGpu:
    def __init__(self, nvml: Any, handle: object) -> None:  # noqa: ANN401 - it has no types
        self._nvml = nvml
        self._handle = handle

    def record(self) -> Record:
        try:
            used = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        except self._nvml.NVMLError:  # some devices do not report it
            return {}
        return {"system/gpu_percent": float(busy), "system/gpu_memory_bytes": float(used)}


class _Reading(NamedTuple):
    clock_s: float
    own_s: float
    cores: CoreTimes
    throttled: Throttled | None

    def own_since(self, before: _Reading) -> float:
        """Return the use of this process, in percent of one core."""
        passed_s = max(self.clock_s - before.clock_s, 1e-9)
        return 100 * max(self.own_s - before.own_s, 0.0) / passed_s

    def busy_since(self, before: _Reading) -> float:
        """Return the use by all programs, in percent of all cores."""
        total_s = self.cores.total_s - before.cores.total_s
        busy = (self.cores.busy_s - before.cores.busy_s) / total_s if total_s > 0 else 0.0
        return 100 * min(max(busy, 0.0), 1.0)

    def throttled_since(self, before: _Reading) -> float | None:
        """Return in how many percent of its periods the CPU quota was used up."""
        if self.throttled is None or before.throttled is None:
            return None
        periods = self.throttled.periods - before.throttled.periods
        throttled = self.throttled.throttled - before.throttled.throttled
        return 100 * throttled / periods if periods > 0 else 0.0
