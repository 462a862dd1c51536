"""Learners of which one is killed, slow, frozen, fails, differs or gets NaN; their checkpoints.

Three ranks, each a process, are started by `--learners` or by `torchrun`. The others must end soon
with an error that names the one and why, and leave a checkpoint. `torchrun` restarts the run from
it, and the run resumes with any number of ranks. Nothing of them may remain.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.callback import Callback, Training
from benchmarks.chaos.finding import Finding, Size, in_time
from benchmarks.chaos.learner import wait_until
from benchmarks.common import ASYNCRL, ROOT, note
from benchmarks.machines import MARK, marked

_RANKS = 3
_SPARE_S = 5.0
"""Seconds in which ranks must end after what started them."""
_WITHIN_S = 15.0 + _SPARE_S
"""Seconds in which a frozen rank must be named: the timeout of `ranks.yaml`, and some more."""

_DEADLINE_S = 180.0
_PAUSE_S = 2.0
_WORLDS = (1, 2, 1, 3)
_FAILS, _RESUMES = 28, 29
_FAULT = "ASYNCRL_CHAOS_FAULT"
"""A file that says which rank gets which fault, once."""

_SETTINGS = f"""--actors 6 --envs-per-actor 1 --evaluate.where off --limiter.min-size 96
    --trainer.batch-size 48 --replay.capacity 60000 --record.interval-s 0.2
    --save.interval-opt-steps 20 --agent.device cpu --agent.hidden 16 --quiet
    --config {Path(__file__).with_suffix(".yaml")}""".split()
_TRAIN = ("train", "dqn", *_SETTINGS, "--run-dir", "run")


class Faults(Callback):
    """Lets one rank fail, learn NaN, or differ from the others, when a file says so."""

    def step(self, trainer: Training) -> None:
        """Look for the fault of this rank."""
        path = Path(os.environ[_FAULT])
        try:
            fault = path.read_text(encoding="utf-8")
        except FileNotFoundError:  # no fault, or its rank has removed the file
            return
        rank, _, what = fault.partition(" ")
        if rank != os.environ.get("RANK") or not what:
            return
        path.unlink()
        if what == "raises":
            raise ValueError("a fault of this callback")
        agent: Any = trainer.agent
        with torch.no_grad():
            parameter = next(agent.model.parameters())
            parameter.fill_(float("nan")) if what == "nan" else parameter.add_(1e-6)


class Command:
    """A command line that starts ranks; all of its processes have ended after the block."""

    def __init__(self, words: Sequence[object], directory: Path) -> None:
        """Start it in a directory."""
        self.mark, self.directory = secrets.token_hex(8), directory
        self.run_dir, self._fault = directory / "run", directory / "fault"
        self._out = (directory / "out.txt").open("a+", encoding="utf-8")
        environ = {**os.environ, MARK: self.mark, _FAULT: str(self._fault)}
        self.process = subprocess.Popen(  # noqa: S603  # our own command line, or torchrun's
            [*map(str, words)],
            cwd=directory,
            env={**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in marked(self.mark):
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()
        self._out.close()

    @property
    def said(self) -> str:
        """What all ranks have printed so far."""
        return (self.directory / "out.txt").read_text(encoding="utf-8", errors="replace")

    def fault(self, rank: int, what: str) -> None:
        """Let a rank have a fault at its next step."""
        draft = self._fault.with_suffix(".draft")
        draft.write_text(f"{rank} {what}", encoding="utf-8")
        draft.replace(self._fault)

    def rank(self, number: int) -> psutil.Process:
        """Return the process of a rank, not one that it has started."""
        (found,) = (p for p in marked(self.mark) if _rank_of(p) == number)
        return found

    def wait_for_steps(self, more: int = 40) -> None:
        """Wait until a checkpoint is this number of steps newer."""
        enough = self.saved + more

        def learns() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the ranks have ended: {self.said[-2000:]}")
            return self.saved >= enough

        wait_until(learns, _DEADLINE_S, "ranks that learn and save")

    @property
    def saved(self) -> int:
        """Optimisation steps of the newest checkpoint; 0 without one."""
        return int(Checkpointer(self.run_dir / "checkpoints").latest() or 0)

    def wait(self) -> float:
        """Wait for the end of all processes; return how long that took."""
        began = time.monotonic()
        wait_until(lambda: self.process.poll() is not None, _DEADLINE_S, "the command's end")
        return time.monotonic() - began


def _rank_of(process: psutil.Process) -> int | None:
    """Return the rank that a process is; None if it is not one, but was started by one."""
    with suppress(psutil.Error):
        environ, parent = process.environ(), process.parent()
        if "RANK" in environ and (parent is None or "RANK" not in parent.environ()):
            return int(environ["RANK"])
    return None


def measure(size: Size, directory: Path) -> list[Finding]:
    """Let ranks have all faults, and look."""
    found: list[Finding] = []
    for number in range(1 if size == "small" else 10):
        for case in (_killed, _frozen, _raising, _differing, _restarted, _resumed):
            place = directory / f"{case.__name__} {number}"
            place.mkdir()
            found += case(place)
            note(f"{found[-1].what}: {found[-1].measured}")
    return found


def _learners(directory: Path) -> Command:
    return Command([*ASYNCRL, *_TRAIN, "--learners", _RANKS], directory)


def _end(what: str, command: Command, says: str) -> Finding:
    """Return whether the fault was named, a checkpoint saved, and nothing left."""
    seconds = command.wait()
    named = re.search(says, command.said) is not None
    code, saved, left = command.process.returncode, command.saved, len(marked(command.mark))
    return Finding(
        target=_FAILS,
        what=what,
        measured=f"{'' if named else 'not '}named; exit {code} after {seconds:.1f} s, "
        f"checkpoint of step {saved}, {left} processes left",
        promised=f"named; exit 1 <= {_WITHIN_S:g} s, a checkpoint; 0",
        passed=named and code == 1 and saved > 0 and not left,
        numbers={"seconds": seconds, "saved": saved, "left": left},
    )


def _killed(directory: Path) -> list[Finding]:
    with _learners(directory) as command:
        command.wait_for_steps()
        command.rank(1).kill()
        return [_end("a rank of three is killed", command, "rank 1 ended without an error")]


def _frozen(directory: Path) -> list[Finding]:
    """First a rank is slow: it is stopped several times, for less than the timeout."""
    with _learners(directory) as command:
        command.wait_for_steps()
        for _ in range(3):
            slow = command.rank(1)
            slow.suspend()
            time.sleep(_PAUSE_S)
            slow.resume()
            command.wait_for_steps(20)
        began = time.monotonic()
        command.rank(2).suspend()
        says = r"rank 2 is stopped, as by SIGSTOP"
        wait_until(lambda: re.search(says, command.said), _DEADLINE_S, "the name of a rank")
        named_s = time.monotonic() - began
        end = _end("a rank of three is frozen", command, says)
        blamed = re.search("(ranks [0-9, ]+|rank [01]) (is stopped|did not)", command.said)
    return [
        end,
        Finding(
            target=_FAILS,
            what=f"slow three times for {_PAUSE_S:g} s before, then frozen",
            measured=f"continued each time; named after {named_s:.1f} s"
            f"{', with another one' if blamed else ''}",
            promised=f"continues; named <= {_WITHIN_S:g} s, alone",
            passed=named_s <= _WITHIN_S and not blamed,
            timed=not blamed,
            numbers={"named_s": named_s},
        ),
    ]


def _raising(directory: Path) -> list[Finding]:
    says = "rank 1 failed: .*a fault of this callback"
    return _ended_by(directory, "raises", "a rank of three raises", says)


def _differing(directory: Path) -> list[Finding]:
    says = "parameters of rank 1 differ from those of rank 0"
    return _ended_by(directory, "differs", "parameters of one rank of three differ by 1e-6", says)


def _ended_by(directory: Path, fault: str, what: str, says: str) -> list[Finding]:
    with _learners(directory) as command:
        command.wait_for_steps()
        command.fault(1, fault)
        return [_end(what, command, says)]


def _restarted(directory: Path) -> list[Finding]:
    """A rank gets NaN; torchrun restarts all, which resume; then torchrun is killed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", _RANKS]
    torchrun += ["--max-restarts", 1, "-m", "asyncrl"]
    with Command([*torchrun, *_TRAIN], directory) as command:
        command.wait_for_steps()
        before = command.saved
        command.fault(2, "nan")
        # Who sees it first differs: the next sum of gradients, or the rank that publishes.
        says = r"rank 2 (became NaN|failed: NonFiniteModel)"
        wait_until(lambda: re.search(says, command.said), _DEADLINE_S, "the name of a rank")
        command.wait_for_steps()
        starts = json.loads((command.run_dir / "run.json").read_text(encoding="utf-8"))["starts"]
        resumed = command.saved
        began = time.monotonic()
        command.process.kill()
        wait_until(lambda: not marked(command.mark), _DEADLINE_S, "ranks that end with torchrun")
        gone_s = time.monotonic() - began
    return [
        Finding(
            target=_RESUMES,
            what="NaN in a rank of three under torchrun --max-restarts 1",
            measured=f"named; started {len(starts)} times, steps {before} -> {resumed}",
            promised="named; resumes from the newest checkpoint",
            passed=len(starts) == 2 and resumed > before,
            numbers={"before": before, "resumed": resumed},
        ),
        in_time(_FAILS, "torchrun is killed: until all processes are gone", gone_s, _SPARE_S),
    ]


def _resumed(directory: Path) -> list[Finding]:
    """One learner saves; two resume, then one, then three, which SIGTERM ends."""
    codes: list[int] = []
    steps: list[tuple[int, int, int]] = []
    for i, world in enumerate(_WORLDS):
        words = ("resume", "run") if i else _TRAIN
        limit = 0 if i == len(_WORLDS) - 1 else 60 * (i + 1)
        limits = ["--learners", world, "--max-opt-steps", limit]
        with Command([*ASYNCRL, *words, *limits], directory) as command:
            if not limit:
                command.wait_for_steps()
                command.process.send_signal(signal.SIGTERM)
            command.wait()
            codes.append(command.process.returncode)
            steps.append((command.saved, *_counts(command.run_dir)))
            left = len(marked(command.mark))
    exact = [opt_steps for opt_steps, *_ in steps[:-1]] == [60, 120, 180]
    grows = all(a[1] < b[1] and a[2] < b[2] for a, b in pairwise(steps))
    return [
        Finding(
            target=_RESUMES,
            what=f"save and resume with {' -> '.join(map(str, _WORLDS))} learners, then SIGTERM",
            measured=f"exits {codes}; (opt steps, env steps, replay) {steps}; {left} left",
            promised="exits 0, 0, 0, 143; steps and replay continue; 0",
            passed=codes == [0, 0, 0, 143] and exact and grows and not left,
            numbers={"env_steps": steps[-1][1], "replay": steps[-1][2]},
        )
    ]


def _counts(run_dir: Path) -> tuple[int, int]:
    """Return environment steps and transitions in replay of the newest record."""
    record = json.loads((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return int(record["env_steps"]), int(record["replay/size"])
