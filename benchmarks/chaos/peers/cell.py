"""Runs one framework once, has one of its environments misbehave, and watches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos.peers.scene import Claim, Scene
from benchmarks.chaos.peers.verdict import Finding, Seen, Strength, judge
from benchmarks.common import ROOT

MARK = "ASYNCRL_CHAOS_DIRECTORY"
"""Environment variable by which all processes of a run are found, wherever they have gone."""

PATIENCE_S = 100.0

_START_S = 90.0
_CALM_S = 3.0
_SETTLE_S = 10.0
_SETTLE_NAN_S = 20.0
_STOP_S = 20.0
_LOOK_S = 0.02
_TIDY_S = 3.0
_TIDIERS = ("resource_tracker", "torch_shm_manager")
_TURNS_FIRST = 5


class DidNotStart(Exception):
    """A run never came to the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One framework, as it is run here."""

    label: str
    module: str
    venv: str = ""
    """Below .peers; empty for that of asyncrl."""

    arguments: tuple[str, ...] = ()
    careful: tuple[str, ...] = ()
    """Faults against which it has settings of its own."""

    means: str = ""
    """What these settings are."""

    hang_patience_s: float = PATIENCE_S
    """How long to wait for an end of a hang under its defaults."""

    @property
    def python(self) -> Path:
        """Return its interpreter, whether it is there or not."""
        return ROOT / ".peers" / self.venv / "bin" / "python" if self.venv else Path(sys.executable)


_RLLIB_MEANS = (
    "sample_timeout_s, env_runner_health_probe_timeout_s and env_runner_restore_timeout_s 10 s, "
    "delay_between_env_runner_restarts_s 1 s, restart_failed_sub_environments"
)

SIDES: Mapping[str, Side] = {
    "asyncrl": Side(
        label="asyncrl, DQN",
        module="with_asyncrl",
        careful=("raise", "hang", "nan"),
        means='supervision.step_timeout_s 10 s, restart.on_exception "restart_env"',
        hang_patience_s=320.0,  # its own deadline is 300 s
    ),
    "rllib-ppo": Side(
        label="RLlib, PPO",
        module="with_rllib",
        venv="rllib",
        arguments=("--algorithm", "ppo"),
        careful=("raise", "hang", "nan"),
        means=_RLLIB_MEANS,
        hang_patience_s=200.0,  # its own deadlines are 60 s and 30 s, and a restart waits for 60 s
    ),
    "rllib-impala": Side(
        label="RLlib, IMPALA",
        module="with_rllib",
        venv="rllib",
        arguments=("--algorithm", "impala"),
        careful=("raise", "hang", "nan"),
        means=_RLLIB_MEANS,
        hang_patience_s=200.0,  # the same
    ),
    "torchrl": Side(
        label="TorchRL, DQN, MultiAsyncCollector",
        module="with_torchrl",
        venv="torchrl",
        careful=("hang", "nan"),
        means="MAX_IDLE_COUNT 10 s, FiniteTensorDictCheck",
    ),
    "sb3": Side(
        label="Stable-Baselines3, PPO, SubprocVecEnv",
        module="with_sb3",
        venv="sb3",
        careful=("nan",),
        means="VecCheckNan(raise_exception=True)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One framework under one fault."""

    side: str
    fault: str
    careful: bool = False

    @property
    def name(self) -> str:
        """Return what it is called on the command line and in the results."""
        return f"{self.side}/{self.fault}" + ("/careful" if self.careful else "")

    @property
    def patience_s(self) -> float:
        """Return how long to wait for full strength."""
        waits = self.fault == "hang" and not self.careful
        return SIDES[self.side].hang_patience_s if waits else PATIENCE_S

    def command(self, directory: Path) -> list[str]:
        """Return what runs it."""
        side = SIDES[self.side]
        module = f"{__package__}.{side.module}"
        command = [str(side.python), "-m", module, str(directory), self.fault, *side.arguments]
        return [*command, "--careful"] if self.careful else command


def cells() -> list[Cell]:
    """Return all of them, in the order of the table."""
    faults = dict.fromkeys(fault for side in SIDES.values() for fault in ("kill", *side.careful))
    return [
        Cell(side=side, fault=fault, careful=careful)
        for fault in faults
        for side in SIDES
        for careful in (False, True)
        if not careful or fault in SIDES[side].careful
    ]


def run_cell(cell: Cell) -> tuple[Finding, str]:
    """Run it; return what became of it, and the framework's version."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as made:
        scene = Scene(Path(made))
        scene.open()
        with _started(cell, scene) as (process, said):
            seen = _watch(cell, scene, process, said)
        versions = [note["version"] for note in scene.notes() if note["event"] == "version"]
    return judge(seen), versions[0]


@contextlib.contextmanager
def _started(cell: Cell, scene: Scene) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    said = scene.directory / "said"
    environment = {
        **os.environ,
        MARK: str(scene.directory),
        "TMPDIR": str(scene.directory),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    with said.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own scripts
            cell.command(scene.directory),
            cwd=scene.directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, said
    finally:
        _end_all(process, scene)


def _watch(cell: Cell, scene: Scene, process: subprocess.Popen[bytes], said: Path) -> Seen:
    _await_calm(scene, process, said)
    printed = said.stat().st_size
    scene.flag.touch()
    claim = _await_claim(scene, process)
    strength = Strength(claim.at)
    working = _await_verdict(cell, scene, process, strength)
    until, ended = time.monotonic(), process.poll() is not None
    scene.stop.touch()
    exit_code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        exit_code = process.wait(_STOP_S)
    return Seen(
        fault=cell.fault,
        claim=claim,
        until=until,
        ended=ended,
        exit_code=exit_code,
        full_since=strength.full_since,
        working=working,
        made=sum(beat.steps for beat in scene.beats().values()),
        notes=scene.notes(),
        said=said.read_bytes()[printed:].decode(errors="replace"),
    )


def _await_calm(scene: Scene, process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until all actors work and the learner learns, and for a while more."""
    began, strength = time.monotonic(), Strength(0.0)
    while True:
        now = time.monotonic()
        strength.look(scene.beats(), now)
        turns = sum(note["event"] == "progress" for note in scene.notes())
        calm = strength.full_since is not None and now > strength.full_since + _CALM_S
        if calm and turns >= _TURNS_FIRST:
            return
        if process.poll() is not None or now > began + _START_S:
            raise DidNotStart(said.read_text(encoding="utf-8", errors="replace")[-2000:])
        time.sleep(0.2)


def _await_claim(scene: Scene, process: subprocess.Popen[bytes]) -> Claim:
    deadline = time.monotonic() + _START_S
    while (claim := scene.claimed()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise DidNotStart("no environment took the fault upon itself")
        time.sleep(_LOOK_S)
    return claim


def _await_verdict(
    cell: Cell, scene: Scene, process: subprocess.Popen[bytes], strength: Strength
) -> int:
    """Watch until it is clear what becomes of the run; return how many actors work then."""
    deadline = time.monotonic() + cell.patience_s
    settle_s = _SETTLE_NAN_S if cell.fault == "nan" else _SETTLE_S
    working = 0
    while process.poll() is None and (now := time.monotonic()) < deadline:
        working = strength.look(scene.beats(), now)
        if strength.full_since is not None and now > strength.full_since + settle_s:
            learned = [note["at"] for note in scene.notes() if note["event"] == "progress"]
            if learned and learned[-1] > strength.full_since:
                break
        time.sleep(_LOOK_S)
    return working


def _end_all(process: subprocess.Popen[Any], scene: Scene) -> None:
    """Kill the group and whatever has left it; those who tidy shared memory may do so first."""
    for pid, command in _marked(scene.directory):
        if not any(tidier in command for tidier in _TIDIERS):
            _kill(pid)
    process.wait()
    deadline = time.monotonic() + _TIDY_S
    while any(_marked(scene.directory)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    while left := list(_marked(scene.directory)):
        for pid, _ in left:
            _kill(pid)
        time.sleep(_LOOK_S)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _marked(directory: Path) -> Iterator[tuple[int, str]]:
    """Return the processes of a run and their commands, dead ones left out."""
    mark = f"{MARK}={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name), (process / "cmdline").read_bytes().decode(errors="replace")
