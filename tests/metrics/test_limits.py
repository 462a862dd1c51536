"""Limits are read from control groups of each version, as machines and containers show them."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from asyncrl.metrics import limits
from asyncrl.metrics.limits import ACTOR_BYTES, DESCRIPTORS, TASKS, ControlGroups, Room, Throttled

V2 = "31 23 0:28 {base} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {base} {point} rw,relatime - cgroup cgroup rw,{controllers}"
OTHER = "23 1 0:20 / / rw - ext4 /dev/root rw"
NO_LIMIT = "9223372036854771712"


def v2(point: str = "/sys/fs/cgroup", base: str = "/") -> str:
    return V2.format(base=base, point=point)


def v1(controllers: str, base: str = "/") -> str:
    return V1.format(base=base, point=f"/sys/fs/cgroup/{controllers}", controllers=controllers)


def memory_v2(limit: str, used: int = 0, cached: int = 0, high: str = "max") -> dict[str, str]:
    return {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": f"{used}",
        "memory.stat": f"anon {used}\ninactive_file {cached}\n",
    }


def memory_v1(limit: str, used: int = 0, cached: int = 0, above: str = NO_LIMIT) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": f"{used}",
        "memory.stat": (
            f"inactive_file 1\nhierarchical_memory_limit {above}\ntotal_inactive_file {cached}\n"
        ),
    }


def pids(limit: str, used: int = 0) -> dict[str, str]:
    return {"pids.max": limit, "pids.current": f"{used}"}


def cpu_v1(quota: int, periods: int = 0, throttled: int = 0) -> dict[str, str]:
    return {
        "cpu.cfs_quota_us": f"{quota}",
        "cpu.cfs_period_us": "100000",
        "cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 5\n",
    }


def cpu_v2(quota: str, periods: int = 0, throttled: int = 0) -> dict[str, str]:
    stat = f"usage_usec 2500000\nnr_periods {periods}\nnr_throttled {throttled}\n"
    return {"cpu.max": quota, "cpu.stat": stat}


@dataclass(kw_only=True)
class Machine:
    """Files below a root, and the limits expected from them."""

    mounts: tuple[str, ...]
    groups: tuple[str, ...]
    """Lines of /proc/self/cgroup."""

    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Directory below /sys/fs/cgroup -> the files in it."""

    memory: tuple[int, int] | None = None
    """The limit, and what is left of it."""

    tasks: tuple[int, int] | None = None
    cores: float | None = None
    throttled: Throttled | None = None
    used_s: float | None = None

    def write(self, root: Path) -> None:
        (root / "proc/self").mkdir(parents=True, exist_ok=True)
        (root / "proc/self/mountinfo").write_text("\n".join((OTHER, *self.mounts)))
        (root / "proc/self/cgroup").write_text("\n".join(self.groups))
        for directory, files in self.files.items():
            where = root / "sys/fs/cgroup" / directory
            where.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (where / name).write_text(f"{text}\n")


JOB = "job.slice/run.scope"

MACHINES = {
    "none": Machine(mounts=(), groups=()),
    "version 1": Machine(
        mounts=(v1("memory"), v1("cpu,cpuacct"), v1("pids")),
        groups=("3:memory:/job", "2:cpu,cpuacct:/job", "1:pids:/job", "0::/"),
        files={
            "memory/job": memory_v1("5000", 3000, 500),
            "memory": memory_v1(NO_LIMIT, 9000),
            "cpu,cpuacct/job": cpu_v1(50_000, 40, 30) | {"cpuacct.usage": "1500000000"},
            "cpu,cpuacct": cpu_v1(-1) | {"cpuacct.usage": "9000000000"},
            "pids/job": pids("24", 10),
            "pids": {},
        },
        memory=(5000, 2500),
        tasks=(24, 14),
        cores=0.5,
        throttled=Throttled(40, 30),
        used_s=1.5,
    ),
    "version 1 in a container that shows its own group as the root": Machine(
        mounts=(v1("memory", base="/docker/ab c".replace(" ", "\\040")), v1("cpu", base="/docker")),
        groups=("3:memory:/docker/ab c", "2:cpu:/docker/ab c", "1:cpuacct:/other"),
        files={
            "memory": memory_v1(NO_LIMIT, 100, 0, above="4096"),
            "cpu": cpu_v1(300_000),
            "cpu/ab c": cpu_v1(150_000) | {"cpuacct.usage": "7"},
        },
        memory=(4096, 3996),
        cores=1.5,
        throttled=Throttled(0, 0),
        used_s=7e-9,
    ),
    "version 2, in a container": Machine(
        mounts=(v2(),),
        groups=("0::/",),
        files={"": memory_v2("5000", 3000, 500) | pids("10", 4) | cpu_v2("50000 100000", 9, 8)},
        memory=(5000, 2500),
        tasks=(10, 6),
        cores=0.5,
        throttled=Throttled(9, 8),
        used_s=2.5,
    ),
    "version 2 with the limit in the middle": Machine(
        mounts=(v2(),),
        groups=(f"0::/{JOB}",),
        files={
            JOB: memory_v2("max", 10) | pids("max", 1) | cpu_v2("400000 100000"),
            "job.slice": memory_v2("4000", 5000) | pids("7", 9) | cpu_v2("150000 100000", 2, 1),
            "": {"cpu.stat": "usage_usec 9\n"},
        },
        memory=(4000, 0),
        tasks=(7, 0),
        cores=1.5,
        throttled=Throttled(2, 1),
        used_s=2.5,
    ),
    "version 2 that slows down before it ends": Machine(
        mounts=(v2(),),
        groups=("0::/",),
        files={"": memory_v2("5000", 1000, high="3000")},
        memory=(3000, 2000),
    ),
    "version 2 with the host's groups mounted besides": Machine(
        mounts=(v2(), v2("/host/cgroup", base="/../..")),
        groups=("0::/",),
        files={"": memory_v2("5000", 4000), "../../../host/cgroup": memory_v2("max")},
        memory=(5000, 1000),
    ),
    "both": Machine(
        mounts=(v1("memory"), v1("pids"), v2("/sys/fs/cgroup/unified")),
        groups=("3:memory:/job", "2:pids:/", "0::/job"),
        files={
            "memory/job": memory_v1("5000", 1000),
            "unified/job": {"cgroup.procs": ""} | cpu_v2("200000 100000"),
        },
        memory=(5000, 4000),
        cores=2.0,
        throttled=Throttled(0, 0),
        used_s=2.5,
    ),
    "files that say nothing": Machine(
        mounts=(v2(), v1("cpu"), "not a line of this file", "1 2 3 - cgroup"),
        groups=("0::/", "2:cpu:/", "nonsense"),
        files={
            "": {"memory.max": "", "memory.current": "much", "cpu.max": "many 100000"},
            "cpu": {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "0"},
        },
    ),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_limits_of_control_groups(machine: Machine, tmp_path: Path) -> None:
    machine.write(tmp_path)
    groups = ControlGroups(tmp_path)
    quota = groups.quota()
    assert (room[:2] if (room := groups.memory()) else None) == machine.memory
    assert (room[:2] if (room := groups.tasks()) else None) == machine.tasks
    assert (quota.cores if quota else None) == machine.cores
    assert (quota.throttled() if quota else None) == machine.throttled
    assert (quota.used_s() if quota else None) == machine.used_s


def test_files_that_cannot_be_read_limit_nothing(tmp_path: Path) -> None:
    machine = MACHINES["version 2, in a container"]
    machine.write(tmp_path)
    for name in machine.files[""]:
        path = tmp_path / "sys/fs/cgroup" / name
        path.unlink()
        path.mkdir()
    groups = ControlGroups(tmp_path)
    assert (groups.memory(), groups.tasks(), groups.quota()) == (None, None, None)
    assert ControlGroups(tmp_path / "nowhere").memory() is None


def test_memory_is_that_of_the_machine_or_of_what_limits_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = SimpleNamespace(total=8000, available=6000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    nothing = ControlGroups(tmp_path / "nowhere")
    assert limits.memory(nothing) == Room(8000, 6000)
    MACHINES["version 1"].write(tmp_path)
    limited = Room(5000, 2500, "limit of the control group")
    assert limits.memory(ControlGroups(tmp_path)) == limited
    machine.available = 700
    assert limits.memory(ControlGroups(tmp_path)) == Room(8000, 700)


def test_limits_of_the_user_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    allowed = {resource.RLIMIT_AS: 1 << 50, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: 9}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed[which], allowed[which]))
    groups = ControlGroups(tmp_path)
    assert limits.descriptors() == 64
    before = limits.memory(groups)
    assert before.limit == psutil.virtual_memory().total
    allowed[resource.RLIMIT_AS] = psutil.Process().memory_info().vms + (1 << 20)
    assert limits.memory(groups).left <= 1 << 20
    assert limits.memory(groups).by == "ulimit -v"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert limits.tasks(groups) is None, "root is exempt"
    monkeypatch.setattr(os, "getuid", lambda: psutil.Process().uids().real + 1)
    assert limits.tasks(groups) == Room(9, 9, "ulimit -u"), "no other process is this user's"
    for which in allowed:
        allowed[which] = resource.RLIM_INFINITY
    assert (limits.tasks(groups), limits.descriptors()) == (None, None)


@pytest.mark.parametrize(
    ("left", "files", "actors"),
    [
        (Room(1 << 40, 10 * ACTOR_BYTES), None, 10),
        (Room(1 << 40, 0), None, 1),
        (Room(1 << 40, 1 << 40), DESCRIPTORS.of(7), 7),
    ],
)
def test_actors_fit_into_every_limit(
    left: Room, files: int | None, actors: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "memory", lambda _: left)
    monkeypatch.setattr(limits, "descriptors", lambda: files)
    monkeypatch.setattr(limits, "_tasks_of_user", lambda: None)
    assert limits.most_actors(ControlGroups(tmp_path)) == actors
    threads = psutil.Process().num_threads()
    files_of_group = pids(f"{TASKS.of(3) + 1}", threads + 1)
    Machine(mounts=(v2(),), groups=("0::/",), files={"": files_of_group}).write(tmp_path)
    assert limits.most_actors(ControlGroups(tmp_path)) == min(actors, 3)
