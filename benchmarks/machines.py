"""Unusual machines: other users, full disks, small limits, unusual environments.

A machine is put together from traits. Mounts are made in a separate mount namespace, so nothing
of a machine is left when its command has ended. Most traits need root; `why_not` says what is
missing. Loads the standard library and psutil alone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import psutil

ROOT = Path(__file__).resolve().parents[1]
MARK = "ASYNCRL_CHAOS_MARK"
"""The variable whose value says which machine, or which run, a process belongs to."""

PLACE = "/srv"
"""Working directory of a machine with separate mounts."""

_USER = 23456
"""A user ID without an entry in /etc/passwd."""

_CGROUPS = Path("/sys/fs/cgroup")
_DEADLINE_S = 10.0


class Unavailable(Exception):
    """This machine cannot be made here, or by this user; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """One property of a machine; `{place}` stands for its working directory."""

    setup: str = ""
    """Shell commands of root, in a mount namespace of the machine's own."""

    runs: str = ""
    """Words put before a command."""

    environ: Mapping[str, str | None] = field(default_factory=dict)
    """Variables of the environment; None removes one."""

    group: tuple[str, int] | None = None
    """A controller of control groups, and its limit."""


def _temporary(options: str, then: str = "") -> Trait:
    where = "{place}/odd"
    mount = f"mkdir {where}; mount -t tmpfs -o mode=1777,{options} tmpfs {where}; {then}"
    return Trait(setup=mount, environ={"TMPDIR": where})


def _read_only(*places: str) -> str:
    each = "if [ -d {0} ]; then mount --bind {0} {0}; mount -o remount,bind,ro {0}; fi\n"
    return "".join(each.replace("{0}", place) for place in places)


_SMALL_MEMORY = "mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm"
_LONG = "{place}/" + "/".join("t" * 40 for _ in range(3))

TRAITS: Mapping[str, Trait] = MappingProxyType(
    {
        "root": Trait(setup=":"),
        "own TMPDIR": Trait(environ={"TMPDIR": "{place}/tmp"}),
        "another user": Trait(
            setup=f"chown {_USER} {{place}} {{place}}/tmp",
            runs=f"setpriv --reuid {_USER} --regid {_USER} --clear-groups",
        ),
        "no home": Trait(environ={"HOME": "/nonexistent"}),
        "no names": Trait(environ={"USER": None, "LOGNAME": None, "HOME": None}),
        "read-only directory": Trait(
            setup=_read_only("{place}")
            + "cd {place}; mount -t tmpfs -o size=16m,mode=1777 tmpfs {place}/tmp"
        ),
        "noexec TMPDIR": _temporary("noexec,size=16m"),
        "full TMPDIR": _temporary("size=4k", "head -c 4096 /dev/zero > {place}/odd/filler"),
        "read-only TMPDIR": _temporary("ro"),
        "missing TMPDIR": Trait(environ={"TMPDIR": "/nonexistent"}),
        "long TMPDIR": Trait(setup=f"mkdir -p -m 777 {_LONG}", environ={"TMPDIR": _LONG}),
        "read-only /tmp": Trait(setup=_read_only("/tmp", "/var/tmp", "/usr/tmp")),  # noqa: S108
        "full shared memory": Trait(
            setup=f"{_SMALL_MEMORY}; head -c 64M /dev/zero > /dev/shm/filler"
        ),
        "64 MB of shared memory": Trait(setup=_SMALL_MEMORY),
        "read-only shared memory": Trait(setup="mount -t tmpfs -o ro tmpfs /dev/shm"),
        "own shared memory": Trait(setup="mount --bind {place}/shm /dev/shm"),
        "full disk": Trait(
            setup="mkdir {place}/disk; mount -t tmpfs -o size=16m,mode=1777 tmpfs {place}/disk"
        ),
        "C locale": Trait(
            environ={"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        ),
        "LANG=C": Trait(environ={"LANG": "C", "LC_ALL": "C"}),
        "ascii": Trait(environ={"PYTHONIOENCODING": "ascii"}),
        "64 descriptors": Trait(runs="prlimit --nofile=64:64"),
        "34 descriptors": Trait(runs="prlimit --nofile=34:34"),
        "32 descriptors": Trait(runs="prlimit --nofile=32:32"),
        "64 processes": Trait(runs="prlimit --nproc=64:64"),
        "3 GB of addresses": Trait(runs="prlimit --as=3000000000"),
        "500 MB": Trait(group=("memory", 500_000_000)),
        "1 GiB": Trait(group=("memory", 1 << 30)),
        "half a core": Trait(group=("cpu", 50_000)),
        "64 tasks": Trait(group=("pids", 64)),
        "24 tasks": Trait(group=("pids", 24)),
        "10 tasks": Trait(group=("pids", 10)),
    }
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where commands run."""

    prefix: Sequence[str]
    environ: Mapping[str, str]
    directory: Path
    """The working directory as seen from here. Its `tmp` is there for temporary files."""

    mark: str

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a command in the working directory, in a separate session."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]  # noqa: S603
            [*self.prefix, *command],
            cwd=self.directory,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **options,
        )


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that carry a mark and are no zombies."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                process = psutil.Process(int(path.parent.name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (OSError, psutil.Error):  # it has ended, or is another user's
            continue
    return found


def why_not(*traits: str) -> str:
    """Return why this machine cannot be made here; empty if it can."""
    needs = [TRAITS[trait] for trait in traits]
    for tool in {need.runs.split()[0] for need in needs if need.runs}:
        if not shutil.which(tool):
            return f"{tool} is not installed"
    if any(need.setup for need in needs):
        return no_mounts()
    return ""


@cache
def no_mounts() -> str:
    """Return why no file system can be mounted here; empty if one can."""
    if os.geteuid():
        return "only root may mount what this machine has"
    if not shutil.which("unshare"):
        return "unshare is not installed"
    mounting = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", PLACE]
    tried = subprocess.run(mounting, capture_output=True, text=True, check=False)  # noqa: S603
    return tried.stderr.strip()


@contextmanager
def machine(directory: Path, *traits: str) -> Iterator[Machine]:
    """Make a machine that works in a directory; at the end, kill its remaining processes."""
    if why := why_not(*traits):
        raise Unavailable(why)
    (directory / "tmp").mkdir(mode=0o777, exist_ok=True)
    needs = [TRAITS[trait] for trait in traits]
    mark = secrets.token_hex(8)
    with ExitStack() as stack:
        groups = [stack.enter_context(control_group(*need.group)) for need in needs if need.group]
        has_mounts = any(need.setup for need in needs)
        place = PLACE if has_mounts else str(directory)
        enters = "".join(f"echo 0 > {group}/cgroup.procs\n" for group in groups)
        setup = enters + (_opened(directory) if has_mounts else "")
        setup += "\n".join(need.setup for need in needs) + '\nexec "$@"'
        prefix = ["unshare", "--mount"] if has_mounts else []
        prefix += ["sh", "-euc", setup.replace("{place}", place), "sh"]
        prefix += [word for need in needs for word in need.runs.split()]
        stack.callback(_kill, mark)
        yield Machine(prefix, _environ(needs, place, mark), directory, mark)


def _environ(needs: Sequence[Trait], place: str, mark: str) -> dict[str, str]:
    commands = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    own = {"PATH": commands, "PYTHONPATH": str(ROOT), MARK: mark}
    changes = [item for need in needs for item in need.environ.items()]
    # torch sets it where it has compiled something, to a directory of this process's.
    own_caches = {"TORCHINDUCTOR_CACHE_DIR": None}
    wanted: dict[str, str | None] = {**os.environ, **own_caches, **own, **dict(changes)}
    return {
        name: value.replace("{place}", place) for name, value in wanted.items() if value is not None
    }


def _opened(directory: Path) -> str:
    """Return commands that show the directory, the interpreter and the sources to every user."""
    lines = [f"mount --bind '{directory}' {PLACE}", f"cd {PLACE}"]
    for path in {Path(sys.base_prefix), Path(sys.prefix), ROOT}:
        closed = [above for above in path.parents if not above.stat().st_mode & 0o001]
        if closed:
            lines += [
                f"mkdir -p {PLACE}/shown; mount --rbind '{path}' {PLACE}/shown",
                f"mount -t tmpfs -o mode=755 tmpfs '{closed[-1]}'; mkdir -p '{path}'",
                f"mount --move {PLACE}/shown '{path}'; rmdir {PLACE}/shown",
            ]
    return "\n".join(lines) + "\n"


def _kill(mark: str) -> None:
    for process in marked(mark):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system that holds `size`, such as 16M, for this process and all others."""
    if why := no_mounts():
        raise Unavailable(why)
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    subprocess.run(mounting, check=True)  # noqa: S603
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S603, S607


@contextmanager
def control_group(controller: str, limit: int) -> Iterator[Path]:
    """Make a control group whose memory (bytes), pids or cpu (us in 100,000) is limited."""
    old = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
    new = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}
    for root, file in ((_CGROUPS / controller, old), (_CGROUPS, new)):
        group = root / f"asyncrl-test-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file[controller]).write_text(str(limit), encoding="ascii")
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    raise Unavailable(f"no control group with a limit on {controller} can be made here")


def _remove(group: Path) -> None:
    """Remove it as soon as all in it have ended."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
