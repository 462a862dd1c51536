"""What is left when a learner is killed, together with different other processes?

A learner has four actors: one has started processes, one of them in its own session; one holds the
interpreter's lock in native code; one is stopped; one works. Then the learner is killed, or its
whole process group, or its helper before it, or all of them after all were stopped, so that none
can clean up. The benchmark searches for processes, for files in the temporary directory and in
/dev/shm, for sockets and semaphores.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from asyncrl.fleet.local import LocalLauncher
from benchmarks.chaos.figures import percentile
from benchmarks.chaos.finding import Finding, Size, in_time
from benchmarks.chaos.learner import Learner, wait_until
from benchmarks.chaos.stage import DEADLINE_S
from benchmarks.chaos.worlds import Order
from benchmarks.common import note
from benchmarks.machines import marked

_FAMILY = 8
"""The learner, its helper, four actors and two processes of one of them."""

_LOOK_S = 5.0
"""For processes and files to go; what is there after that is left."""


@dataclass(frozen=True, slots=True)
class Left:
    """What one kill left behind."""

    way: str
    gone_s: float
    """Until no actor was there."""

    actors: int
    others: int
    """Of the processes that actors had started."""

    traces: tuple[str, ...]
    """Files, sockets and semaphores."""

    traces_gone_s: float


def _the_learner(learner: Learner) -> None:
    os.kill(learner.pid, signal.SIGKILL)


def _its_group(learner: Learner) -> None:
    os.killpg(learner.pid, signal.SIGKILL)


def _its_helper_first(learner: Learner) -> None:
    psutil.Process(learner.pid).children()[0].kill()
    os.kill(learner.pid, signal.SIGKILL)


def _all_at_once(learner: Learner) -> None:
    """Stop all first, so that none reacts to the end of another."""
    family = marked(learner.mark)
    for process in family:
        process.suspend()
    for process in family:
        process.kill()


_WAYS: Mapping[str, Callable[[Learner], None]] = {
    "the learner": _the_learner,
    "its group": _its_group,
    "its helper first": _its_helper_first,
    "all at once": _all_at_once,
}


_WATCHED = ("the learner", "its group")
"""Ways that leave a process to clean up."""


def measure(size: Size, directory: Path) -> list[Finding]:
    """Kill learners in all ways, and look."""
    count = len(_WAYS) if size == "small" else 200
    ways = list(_WAYS)
    found: list[Left] = []
    for number in range(count):
        found.append(_left_by(ways[number % len(ways)], directory / str(number)))
        note(f"{number + 1} of {count}: {found[-1]}")
    return [_processes(found), _in_time(found), _helper_first(found), _traces_found(found)]


def _left_by(way: str, directory: Path) -> Left:
    """Start a learner, get its actors stuck, kill it and look."""
    directory.mkdir()
    learner = Learner(directory, actors=4)
    shared = learner.shared_memory
    before = _traces(shared)
    with learner:
        learner.wait_for_steps()
        found = learner.incarnations.living()
        for one, order in zip(found, (Order.SPAWN, Order.HOLD, Order.STOP), strict=False):
            one.order = order
        wait_until(lambda: all(one.obeyed_at for one in found[:3]), DEADLINE_S, "stuck actors")
        wait_until(lambda: len(marked(learner.mark)) >= _FAMILY, DEADLINE_S, "their children")
        family = marked(learner.mark)
        pids = {one.pid for one in found}
        actors = [process for process in family if process.pid in pids]
        helper = psutil.Process(learner.pid).children()[0].pid
        runs = [process for process in family if process.pid in {learner.pid, helper} | pids]
        _WAYS[way](learner)
        killed_at = time.monotonic()
        actors_gone = _gone_after(lambda: not any(map(_alive, actors)), killed_at)
        if way not in _WATCHED:
            _gone_after(lambda: not any(map(_alive, runs)), killed_at)
            LocalLauncher().close()  # the next start
        _gone_after(lambda: not any(map(_alive, family)), killed_at)
        traces_gone = _gone_after(lambda: not _traces(shared) - before, killed_at)
        left = {process.pid for process in marked(learner.mark)}
        return Left(
            way=way,
            gone_s=actors_gone,
            actors=len(left & pids),
            others=len(left - pids),
            traces=tuple(sorted(_traces(shared) - before)),
            traces_gone_s=traces_gone,
        )


def _alive(process: psutil.Process) -> bool:
    """Whether a process still runs. One that is exiting has no environment any more.

    A process whose first thread is a zombie still runs while other threads exit and hold its files.
    """
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _gone_after(gone: Callable[[], object], since: float) -> float:
    with suppress(TimeoutError):
        wait_until(gone, _LOOK_S, "an end")
    return time.monotonic() - since


def _traces(shared_memory: Path) -> set[str]:
    """Return files, sockets by name, and System V objects that are there now."""
    temporary = Path(tempfile.gettempdir())
    found = {str(path) for path in temporary.glob("*asyncrl*")}
    if shared_memory.exists():
        found |= {str(path) for path in shared_memory.iterdir()}
    unix = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    names = [line.split(maxsplit=7)[7] for line in unix if len(line.split(maxsplit=7)) == 8]
    own = (f"{temporary}/asyncrl", f"{temporary}/.asyncrl")
    found |= {f"socket {name}" for name in names if name.startswith(own)}
    for kind in ("sem", "shm", "msg"):
        lines = Path(f"/proc/sysvipc/{kind}").read_text(encoding="utf-8").splitlines()[1:]
        found |= {f"{kind} {line.split()[1]}" for line in lines}
    return found


def _processes(found: list[Left]) -> Finding:
    """Return the finding on processes that were left although the helper was running."""
    own = [left for left in found if left.way != "its helper first"]
    actors, others = sum(left.actors for left in own), sum(left.others for left in own)
    return Finding(
        target=7,
        what=f"{len(own)} kills of a learner, its group, or all at once: processes left",
        measured=f"{actors} actors, {others} of their children",
        promised=f"0 within {_LOOK_S:g} s",
        passed=actors == others == 0,
        numbers={"actors": actors, "others": others, "kills": len(own)},
    )


def _in_time(found: list[Left]) -> Finding:
    times = [left.gone_s for left in found if left.way in _WATCHED]
    what = f"{len(times)} kills of a learner: until the last actor is gone, at most"
    return in_time(7, what, max(times), 0.5, note=f" (p95 {percentile(times, 95):.2f} s)")


def _helper_first(found: list[Left]) -> Finding:
    """Return the processes that were left when no process could clean up."""
    own = [left for left in found if left.way == "its helper first"]
    actors, others = sum(left.actors for left in own), sum(left.others for left in own)
    longest = max(left.gone_s for left in own)
    return Finding(
        target=7,
        what=f"{len(own)} kills of the helper that watches, then of the learner",
        measured=f"{actors} actors left, {longest:.2f} s at most until none was there; {others} "
        "of their children left after the next start",
        promised="0 actors within 2 s; 0",
        passed=actors == others == 0 and longest <= 2,
        timed=actors == others == 0,
        numbers={"actors": actors, "others": others, "longest_s": longest},
    )


def _traces_found(found: list[Left]) -> Finding:
    """Say which files, sockets and semaphores were left."""
    left = [trace for each in found for trace in each.traces]
    alone = [each.traces_gone_s for each in found if each.way in _WATCHED]
    return Finding(
        target=8,
        what=f"{len(found)} kills of every kind: files, sockets and semaphores left",
        measured=f"{len(left)}; gone {max(alone):.2f} s at most after a kill of the learner"
        + "".join(f"; {trace}" for trace in left[:3]),
        promised="0, at the next start at the latest",
        passed=not left,
        numbers={"left": len(left), "longest_s": max(alone), "kills": len(found)},
    )
