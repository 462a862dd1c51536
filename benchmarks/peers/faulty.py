"""CartPole that misbehaves once, in one process, on request. Does not need asyncrl.

A run and its watcher share a directory:

    beats/PID-...   when an environment of that process last stepped, and how many steps it has made
    flag            written by the watcher: one environment must misbehave
    claim           written by the environment that does
    stop            written by the watcher: the run must end
    notes           what environments and the training loop say, one JSON object a line

Times are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import faults_in_process

FAULTS: Mapping[str, Callable[[], None]] = {
    "kill": faults_in_process.kill,
    "raise": faults_in_process.fail,
    "hang": faults_in_process.sleep,
    "nan": lambda: None,
}
"""What happens in the step that misbehaves; if it returns, it returns NaN."""

FOREVER = 2**40
"""Steps that no run gets to."""

_BEAT = struct.Struct("<dQ")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far a process has come."""

    at: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's directory, and how the run was started."""

    directory: Path
    fault: str = ""
    careful: bool = False
    """With the framework's own settings against such faults, in place of its defaults."""

    algorithm: str = ""
    """Where a script knows several."""

    def open(self) -> None:
        """Make what must be there before the run begins."""
        (self.directory / "beats").mkdir()

    def ask(self, what: str) -> None:
        """Ask for the fault by `flag`, for the end by `stop`."""
        (self.directory / what).touch()

    def asked(self, what: str) -> bool:
        """Whether that was requested."""
        return (self.directory / what).exists()

    def claim(self) -> bool:
        """Claim the fault for this process; return False if another one has."""
        try:
            (self.directory / "claim").touch(exist_ok=False)
        except FileExistsError:
            return False
        self.note("fault", pid=os.getpid())
        return True

    def beats(self) -> dict[int, Heartbeat]:
        """Return the processes that have made steps."""
        found: dict[int, Heartbeat] = {}
        for path in (self.directory / "beats").iterdir():
            data = path.read_bytes()
            if len(data) == _BEAT.size:
                at, steps = _BEAT.unpack(data)
                pid = int(path.name.partition("-")[0])
                before = found.get(pid, Heartbeat(0.0, 0))
                found[pid] = Heartbeat(max(at, before.at), steps + before.steps)
        return found

    def note(self, event: str, **values: Any) -> None:  # noqa: ANN401  # whatever JSON takes
        """Add a line to the notes, from any process."""
        line = json.dumps({"event": event, "at": time.monotonic(), **values}) + "\n"
        with (self.directory / "notes").open("ab") as file:
            file.write(line.encode())  # a single append, so that lines of two processes do not mix

    def progress(self, **values: Any) -> None:  # noqa: ANN401  # see above
        """Note the learning progress and the steps made so far."""
        made = sum(beat.steps for beat in self.beats().values())
        self.note("progress", made=made, **values)

    def notes(self, event: str = "") -> list[dict[str, Any]]:
        """Return all complete lines, or those of one event."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.directory / "notes").read_text(encoding="utf-8")
            lines = [
                json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"
            ]
            return [line for line in lines if event in {"", line["event"]}]
        return []

    def make_env(self) -> Any:  # noqa: ANN401  # untyped where this is used
        """Return an environment that fails on request."""
        return make_env(str(self.directory), self.fault)


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that notes each step and misbehaves in one of four ways."""

    def __init__(self, env: gymnasium.Env[Any, Any], run: Run) -> None:
        super().__init__(env)
        self._run = run
        self._is_due = True
        self._pid = self._file = self._steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, or misbehave."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._is_due and self._run.asked("flag"):
            self._is_due = False
            if self._run.claim():
                FAULTS[self._run.fault]()
                # Only a step after this one shows that the process still runs.
                return np.full_like(obs, np.nan), float("nan"), terminated, truncated, info
        self._beat()
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close both."""
        if self._pid == os.getpid():
            os.close(self._file)
            self._pid = 0
        super().close()

    def _beat(self) -> None:
        if self._pid != os.getpid():  # made before a fork, it may be used after
            self._pid, self._steps = os.getpid(), 0
            where = self._run.directory / "beats"
            self._file, _ = tempfile.mkstemp(prefix=f"{self._pid}-", dir=where)
        self._steps += 1
        os.pwrite(self._file, _BEAT.pack(time.monotonic(), self._steps), 0)


def make_env(directory: str, fault: str) -> Any:  # noqa: ANN401  # untyped where this is used
    """Return an environment of the run in a directory."""
    return Faulty(gymnasium.make("CartPole-v1"), Run(directory=Path(directory), fault=fault))


@contextlib.contextmanager
def running(description: str | None, version: str) -> Iterator[Run]:
    """Read the command line of a script; note its version, and what the caller of training gets."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--careful", action="store_true")
    parser.add_argument("--algorithm", default="")
    run = Run(**vars(parser.parse_args()))
    run.note("version", version=version)
    try:
        yield run
    except BaseException as error:
        run.note("error", type=type(error).__name__, message=str(error))
        raise


def is_finite(numbers: Any) -> bool:  # noqa: ANN401  # arrays of several kinds
    """Whether all of some numbers are finite, by their sum."""
    return math.isfinite(float(numbers.sum()))
