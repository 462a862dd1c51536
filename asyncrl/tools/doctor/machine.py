"""Checks whether this machine is ready for training: one small function per check.

All facts are read in one place, so the checks can be tested without a machine of each kind.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from asyncrl.agents.parts.torch_agent import gpu_names
from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.types import ActorId
from asyncrl.fleet.local import LocalLauncher
from asyncrl.fleet.local_files import temp_directory
from asyncrl.metrics import limits
from asyncrl.metrics.limits import ACTOR_BYTES, DESCRIPTORS, TASKS, Need, Room
from asyncrl.metrics.system import Cores
from asyncrl.replay.ring_config import RingConfig
from asyncrl.tools.doctor.findings import Finding, fail, ok, warn

_TEMP_BYTES = 32 << 20
"""Room for the logs of a few dozen actors, at most 1 MiB each."""

_SLOW_START_S = 15.0
"""Includes loading torch, which the helper process that starts actors does once."""

_START_DEADLINE_S = 60.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The resources of a planned run."""

    name: str
    replay_bytes: int
    """Memory of the full replay."""

    actors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts that the checks use."""

    cores: int
    """CPU cores that this process may use."""

    quota: float | None = None
    """CPU seconds per second that a control group allows; None if it limits nothing."""

    memory: Room
    """Memory of the machine, or of the control group or resource limit if that is less."""

    tasks: Room | None = None
    """Limit on processes and threads; None if there is no limit."""

    descriptors: int | None
    """Limit on open files and sockets per process; None if there is no limit."""

    temp: Path | None
    """Directory of the actors' sockets and files; None if no directory can be used."""

    temp_bytes: int
    """Free space there; -1 if it is not writable."""

    temp_note: str = ""
    """Why this directory is used, or why none can be."""

    shm_bytes: int
    """Free space in /dev/shm; -1 if it does not exist."""

    thread_settings: tuple[tuple[str, str], ...]
    """Environment variables that set the number of threads of libraries."""

    torch: str
    gpus: tuple[str, ...]
    start_s: float
    """Seconds from launching an actor to its exit; infinite if it did not start."""

    start_error: str = ""
    forked: bool = False
    """Whether the actor was forked from the helper process, as the actor reports."""

    cuda: bool = False
    """Whether CUDA was initialised when the actor began, as the actor reports."""

    planned_run: PlannedRun | None = None

    @property
    def share(self) -> float:
        """CPU seconds per second that this process may use."""
        return self.cores if self.quota is None else self.quota


def findings(facts: MachineFacts) -> Iterator[Finding]:
    """Check the facts and yield the findings."""
    yield _cores(facts)
    yield _memory(facts)
    yield _tasks(facts)
    yield _descriptors(facts)
    yield _temp(facts)
    yield _shared_memory(facts)
    yield _threads(facts)
    yield _actors(facts)
    yield _torch(facts)


def read_facts(planned_run: PlannedRun | None = None) -> MachineFacts:
    """Read the facts of this machine; this starts one actor, which reports and exits."""
    tasks = limits.tasks()  # before an actor is started
    start_s, start_error, reported = _start_an_actor()
    cores = Cores()
    temp, temp_note = _temp_directory()
    return MachineFacts(
        cores=cores.affinity,
        quota=cores.quota_cores,
        memory=limits.memory(),
        tasks=tasks,
        descriptors=limits.descriptors(),
        temp=temp,
        temp_bytes=_free_bytes(temp) if temp and os.access(temp, os.W_OK) else -1,
        temp_note=temp_note,
        shm_bytes=_free_bytes(Path("/dev/shm")),  # noqa: S108  # only its size is read
        thread_settings=tuple(
            (name, os.environ[name]) for name in _THREAD_VARIABLES if name in os.environ
        ),
        torch=version("torch"),
        gpus=gpu_names(),
        start_s=start_s,
        start_error=start_error,
        forked=reported.get("forked", False),
        cuda=reported.get("cuda", False),
        planned_run=planned_run,
    )


def memory_bytes(replay: ReplayBufferConfig, schema: SegmentSchema) -> int:
    """Return the memory of a full replay; 0 for queues of trajectories, which stay short."""
    return replay.memory_bytes(schema) if isinstance(replay, RingConfig) else 0


def _cores(facts: MachineFacts) -> Finding:
    seen = f"{facts.cores} for this process"
    if facts.quota is not None:
        seen += f", with a CPU quota of {facts.quota:.3g}"
    if facts.share > 1:
        return ok("cores", seen)
    return warn(
        "cores",
        seen,
        "Actors and learner share it, so an asynchronous run is hardly faster than train_sync; "
        "raise the limit of the container (docker run --cpus) or of taskset.",
    )


def _memory(facts: MachineFacts) -> Finding:
    if facts.planned_run:
        return _memory_for(facts.planned_run, facts)
    share = facts.memory.left / max(1, facts.memory.limit)
    seen = (
        f"{_room(facts)}; a million transitions of CartPole take {_gib(60_000_000)}, of Atari "
        f"frames {_gib(8_000_000_000)}"
    )
    if share >= 0.1 and facts.memory.left >= 2 * ACTOR_BYTES:
        return ok("memory", seen)
    return warn(
        "memory",
        seen,
        "Little is left: a replay that does not fit is rejected before a run starts, but each "
        "actor takes about 0.3 GiB. End other programs, or use fewer actors.",
    )


def _memory_for(run: PlannedRun, facts: MachineFacts) -> Finding:
    actors_bytes = run.actors * ACTOR_BYTES
    held = f", its {run.actors} actors about {_gib(actors_bytes)}" if run.actors else ""
    seen = (
        f"{_room(facts)}; the replay of {run.name} takes {_gib(run.replay_bytes)} when it is "
        f"full{held}"
    )
    if run.replay_bytes > facts.memory.left:
        advice = "The run would be rejected: lower replay.capacity, or set replay.memory_map."
        return fail("memory", seen, advice)
    if run.replay_bytes + actors_bytes > facts.memory.left:
        advice = "Too little for both: lower replay.capacity, or use fewer actors."
        return warn("memory", seen, advice)
    return ok("memory", seen)


def _room(facts: MachineFacts) -> str:
    limit, left, by = facts.memory
    return f"{_gib(left)} of {_gib(limit)} available" + (f" ({by})" if by else "")


def _tasks(facts: MachineFacts) -> Finding:
    if facts.tasks is None:
        return ok("processes", "no limit on processes and threads")
    limit, left, by = facts.tasks
    seen = f"{left} of {limit} processes and threads may be started ({by})"
    advice = "Raise the limit (docker run --pids-limit, TasksMax of systemd, ulimit -u)."
    return _enough_for_actors("processes", seen, advice, TASKS, left, facts)


def _descriptors(facts: MachineFacts) -> Finding:
    if facts.descriptors is None:
        return ok("descriptors", "no limit on open files")
    seen = f"{facts.descriptors} may be open"
    advice = "Raise the limit: ulimit -n 4096."
    return _enough_for_actors("descriptors", seen, advice, DESCRIPTORS, facts.descriptors, facts)


def _enough_for_actors(
    check: str, seen: str, advice: str, need: Need, allowed: int, facts: MachineFacts
) -> Finding:
    actors = need.actors_within(allowed)
    if facts.planned_run:
        needed = facts.planned_run.actors
        seen += f"; a run of {facts.planned_run.name} takes about {need.of(needed)}"
        return ok(check, seen) if actors >= needed else fail(check, seen, advice)
    seen += f", enough for about {actors} {'actor' if actors == 1 else 'actors'}"
    if actors >= facts.share:
        return ok(check, seen)
    return fail(check, seen, advice) if actors < 1 else warn(check, seen, advice)


def _temp(facts: MachineFacts) -> Finding:
    free = f"{_gib(facts.temp_bytes)} free" if facts.temp_bytes >= 0 else "nothing can be written"
    place = [f"{free} in {facts.temp}"] if facts.temp else []
    seen = "; ".join([*place, *filter(None, [facts.temp_note])])
    if facts.temp_bytes < 0:
        return fail(
            "temp space",
            seen,
            "Sockets and files of actors are created there: set TMPDIR to a writable directory "
            "with a path of at most 70 bytes.",
        )
    if facts.temp_bytes < _TEMP_BYTES:
        advice = (
            "Actors write logs and errors there: free some space, or set TMPDIR to another disk."
        )
        return warn("temp space", seen, advice)
    return ok("temp space", seen)


def _shared_memory(facts: MachineFacts) -> Finding:
    size = "none" if facts.shm_bytes < 0 else f"{_gib(facts.shm_bytes)} free"
    return ok("shared memory", f"{size}; asyncrl uses none, environments may")


def _threads(facts: MachineFacts) -> Finding:
    if not facts.thread_settings:
        seen = "no variable sets them; each actor uses one, the learner what agent.threads sets"
        return ok("threads", seen)
    seen = ", ".join(f"{name}={value}" for name, value in facts.thread_settings)
    if all(
        value.isdigit() and int(value) <= math.ceil(facts.share)
        for _, value in facts.thread_settings
    ):
        return ok("threads", seen)
    return warn(
        "threads",
        seen,
        f"More threads than the {facts.share:.3g} available cores can slow each other down; unset "
        "it.",
    )


def _actors(facts: MachineFacts) -> Finding:
    if facts.start_error or facts.start_s == float("inf"):
        return fail(
            "actors",
            facts.start_error or f"none started within {_START_DEADLINE_S:g} s",
            "Actors are processes; look for a limit on them (pids.max, ulimit -u), for a full "
            "disk, or for a sandbox that forbids them.",
        )
    how = "forked from a helper that had loaded torch" if facts.forked else "a new interpreter"
    cuda = "initialised" if facts.cuda else "not initialised"
    seen = f"one started and ended in {facts.start_s:.2f} s: {how}, with CUDA {cuda}"
    if facts.forked and facts.cuda:
        return fail(
            "actors",
            seen,
            "CUDA does not work in forks of a process that has used it: find what uses it as soon "
            "as torch is loaded (sitecustomize, a .pth file, a torch plugin).",
        )
    if facts.start_s < _SLOW_START_S:
        return ok("actors", seen)
    advice = "This is slow: the machine is busy, or Python's files are on a slow disk."
    return warn("actors", seen, advice)


def _torch(facts: MachineFacts) -> Finding:
    where = ", ".join(facts.gpus) if facts.gpus else "no GPU, so the learner computes on the CPU"
    return ok("torch", f"{facts.torch}, {where}")


def _free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free if directory.is_dir() else -1


def _temp_directory() -> tuple[Path | None, str]:
    """Return the directory for sockets and files of actors, or None; and the reason."""
    try:
        temp = temp_directory()
    except ConfigError as error:
        return None, str(error).partition(";")[0]
    usual = Path(tempfile.gettempdir())
    return temp, "" if temp == usual else f"the path of {usual} is too long for sockets"


def _start_an_actor() -> tuple[float, str, dict[str, bool]]:
    """Start an actor; return the seconds it took, the error, and the facts that it reports."""
    began = time.monotonic()
    try:
        launcher = LocalLauncher(preload=["asyncrl.agents.parts.torch_agent"])
    except (OSError, ConfigError) as error:
        return float("inf"), str(error), {}
    path = launcher.directory / "reported.json"
    try:
        launcher.launch(Peer(actor_id=ActorId(0), incarnation=0), _DescribesItself(path))
        ended = launcher.exits(_START_DEADLINE_S)
        took_s = time.monotonic() - began if ended else float("inf")
        if ended and ended[0].code:
            return float("inf"), ended[0].error or f"it exited with code {ended[0].code}", {}
        return took_s, "", json.loads(path.read_text("ascii")) if path.is_file() else {}
    finally:
        launcher.close()


@dataclass(frozen=True, slots=True)
class _DescribesItself(Spec):
    """An actor that writes the facts about its process to a file."""

    path: Path

    def run(self, peer: Peer, progress: Progress) -> None:
        """Write them."""
        torch = sys.modules.get("torch")  # no import: the helper has torch loaded, or not
        reported = {
            "forked": any("local_helper" in word for word in sys.orig_argv),
            "cuda": torch is not None and bool(torch.cuda.is_initialized()),
        }
        self.path.write_text(json.dumps(reported), "ascii")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
