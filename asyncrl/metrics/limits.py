"""Limits of this process: its control groups, and the resource limits of its user.

Control groups of version 1 and 2 are read, including those that a container sees as its own. A
limit on any group from the process's own up to the root counts. If nothing can be read, as on
systems other than Linux, there is no limit. Knows nothing about runs.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

_GROUP = "limit of the control group"
_NONE_BYTES = 1 << 60
"""Version 1 represents an unset limit as the largest number of pages, in bytes."""


class Need(NamedTuple):
    """What a run needs of a limited resource."""

    at_rest: int
    per_actor: int

    def of(self, actors: int) -> int:
        """Return what a run with this number of actors needs."""
        return self.at_rest + actors * self.per_actor

    def actors_within(self, allowed: int) -> int:
        """Return the number of actors that fit; 0 if none does."""
        return max(0, (allowed - self.at_rest) // self.per_actor)


TASKS = Need(at_rest=15, per_actor=4)
"""Processes and threads of a run: the learner has 10, its helper 1, and the evaluator 4."""

DESCRIPTORS = Need(at_rest=30, per_actor=2)
"""Open files of the learner's process, which has most: 28 and a reserve of 2."""

ACTOR_BYTES = 300 << 20
"""Memory of an actor with a small environment."""


class Quota(NamedTuple):
    """How much CPU time a control group may use."""

    cores: float
    """CPU seconds per second."""

    cpu: Path
    """Directory of the group, which contains `cpu.stat`."""

    cpuacct: Path | None
    """Directory of the same group where version 1 counts CPU time; None for version 2."""

    def throttled(self) -> Throttled:
        """Read how often the group has used up its quota."""
        stat = _table(self.cpu / "cpu.stat")
        return Throttled(stat.get("nr_periods", 0), stat.get("nr_throttled", 0))

    def used_s(self) -> float | None:
        """Read the CPU time of the group so far; None if it is not counted."""
        if self.cpuacct:
            used_ns = _number(self.cpuacct / "cpuacct.usage")
            return None if used_ns is None else used_ns / 1e9
        used_us = _table(self.cpu / "cpu.stat").get("usage_usec")
        return None if used_us is None else used_us / 1e6


class Throttled(NamedTuple):
    """Counters of a CPU quota; only differences between two readings have a meaning."""

    periods: int
    """Periods in which the group used CPU time."""

    throttled: int
    """Periods in which it used up its quota and had to wait."""


class Room(NamedTuple):
    """What a limit still allows."""

    limit: int
    left: int
    """Unused part of the limit; 0 if it is used up."""

    by: str = ""
    """What sets the limit, in words for messages; empty if it is the machine itself."""


class ControlGroups:
    """The control groups that this process is in.

    Args:
        root: Directory that holds `proc` and the mount points.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        mounts = list(_mounts(root))
        paths = dict(_memberships(root))
        self._chains = {
            controller: _visible([mount for mount in mounts if controller in mount.names], path)
            for controller, path in paths.items()
        }
        self._same_path = paths.get("cpu") == paths.get("cpuacct")

    def quota(self) -> Quota | None:
        """Return the smallest CPU quota; None without a quota."""
        quotas = [*self._quotas_v1(), *self._quotas_v2()]
        return min(quotas, default=None, key=lambda quota: quota.cores)

    def memory(self) -> Room | None:
        """Return the memory limit with the least left; None without a limit."""
        rooms = [_memory_v1(group) for group in self._chain("memory")]
        rooms += [_memory_v2(group) for group in self._chain("")]
        return min(filter(None, rooms), default=None, key=lambda room: room.left)

    def tasks(self) -> Room | None:
        """Return the limit on processes and threads with the least left; None without a limit."""
        rooms = []
        for group in (*self._chain("pids"), *self._chain("")):
            limit, used = _number(group / "pids.max"), _number(group / "pids.current")
            if limit is not None and used is not None:
                rooms.append(Room(limit, max(0, limit - used), _GROUP))
        return min(rooms, default=None, key=lambda room: room.left)

    def _chain(self, controller: str) -> list[Path]:
        return self._chains.get(controller, [])

    def _quotas_v1(self) -> Iterator[Quota]:
        groups, counted = self._chain("cpu"), self._chain("cpuacct")
        # Mounted separately, the two may contain different processes.
        same = self._same_path and len(groups) == len(counted)
        for group, where in zip(groups, counted if same else groups, strict=True):
            quota_us = _number(group / "cpu.cfs_quota_us")
            period_us = _number(group / "cpu.cfs_period_us")
            if quota_us is not None and quota_us > 0 and period_us:
                yield Quota(quota_us / period_us, group, where)

    def _quotas_v2(self) -> Iterator[Quota]:
        for group in self._chain(""):
            match _text(group / "cpu.max").split():
                case [quota_us, period_us] if quota_us.isdecimal() and period_us.isdecimal():
                    yield Quota(int(quota_us) / max(1, int(period_us)), group, None)


def memory(groups: ControlGroups | None = None) -> Room:
    """Return the memory of the machine, or a limit of this process if that has less left."""
    machine = psutil.virtual_memory()
    rooms = [Room(machine.total, machine.available), (groups or ControlGroups()).memory()]
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY:
        taken = psutil.Process().memory_info().vms
        rooms.append(Room(addresses, max(0, addresses - taken), "ulimit -v"))
    return min(filter(None, rooms), key=lambda room: room.left)


def tasks(groups: ControlGroups | None = None) -> Room | None:
    """Return how many processes and threads a run may have; None without a limit.

    Those of this process count as left, because they become part of a run.
    """
    rooms = [(groups or ControlGroups()).tasks(), _tasks_of_user()]
    room = min(filter(None, rooms), default=None, key=lambda room: room.left)
    own = psutil.Process().num_threads()
    return room and room._replace(left=min(room.limit, room.left + own))


def descriptors() -> int | None:
    """Return how many files and sockets a process may open; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def most_actors(groups: ControlGroups | None = None) -> int:
    """Return how many actors memory, processes and open files allow; at least 1."""
    groups = groups or ControlGroups()
    allowed = [memory(groups).left // ACTOR_BYTES]
    if room := tasks(groups):
        allowed.append(TASKS.actors_within(room.left))
    if (files := descriptors()) is not None:
        allowed.append(DESCRIPTORS.actors_within(files))
    return max(1, min(allowed))


def _tasks_of_user() -> Room | None:
    """Return what RLIMIT_NPROC leaves; it counts the user's threads, and does not apply to root."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or os.getuid() == 0:
        return None
    used = 0
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid():
                used += process.num_threads()
        except psutil.Error:  # it has exited meanwhile
            continue
    return Room(limit, max(0, limit - used), "ulimit -u")


class _Mount(NamedTuple):
    """A hierarchy of control groups."""

    names: frozenset[str]
    """Its controllers, in version 1; version 2 has one hierarchy, with an empty name here."""

    base: PurePosixPath
    """The group that the mount point shows."""

    point: Path


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        match left.split(), right.split():
            case [_, _, _, base, point, *_], [("cgroup" | "cgroup2") as kind, *_, options]:
                names = options.split(",") if kind == "cgroup" else [""]
                path = root / _unescaped(point).lstrip("/")
                yield _Mount(frozenset(names), PurePosixPath(_unescaped(base)), path)


def _memberships(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield each controller with the path of this process's group; version 2 has no name."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        match line.split(":", 2):
            case [_, controllers, path]:
                for controller in controllers.split(","):
                    yield controller, PurePosixPath(path)


def _visible(mounts: list[_Mount], path: PurePosixPath) -> list[Path]:
    """Return the visible directories of the group at a path, and of its parents."""
    for mount in mounts:
        if path.is_relative_to(mount.base) and ".." not in path.parts:
            inside = path.relative_to(mount.base)
            if (mount.point / inside).is_dir():
                return [mount.point / inside, *(mount.point / above for above in inside.parents)]
    # The path belongs to another namespace. What is mounted here is the container's own group.
    return [mounts[-1].point] if mounts else []


def _memory_v1(group: Path) -> Room | None:
    stat = _table(group / "memory.stat")
    limits = [
        _number(group / "memory.limit_in_bytes"),
        stat.get("hierarchical_memory_limit"),  # including parents that are not visible
    ]
    used, cached = _number(group / "memory.usage_in_bytes"), stat.get("total_inactive_file", 0)
    return _memory(limits, used, cached)


def _memory_v2(group: Path) -> Room | None:
    # Above `high` a process is not killed, but slowed down until it hardly runs.
    limits = [_number(group / "memory.max"), _number(group / "memory.high")]
    cached = _table(group / "memory.stat").get("inactive_file", 0)
    return _memory(limits, _number(group / "memory.current"), cached)


def _memory(limits: list[int | None], used: int | None, cached: int) -> Room | None:
    """Return what is left; file caches count as free."""
    limit = min((n for n in limits if n is not None), default=_NONE_BYTES)
    if limit >= _NONE_BYTES or used is None:
        return None
    return Room(limit, min(limit, max(0, limit - used + cached)), _GROUP)


def _table(path: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path) -> int | None:
    """Return the number in a file; None for "max", or without the file."""
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _unescaped(path: str) -> str:
    """Undo the escapes of blanks in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
