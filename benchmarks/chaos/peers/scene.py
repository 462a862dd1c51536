"""What a run shares with whoever watches it: a directory. Loads nothing but the standard library.

    beats/PID   when that process last stepped an environment, and how many steps it has made
    flag        made by the watcher: one environment is to misbehave
    claim       made by the environment that does
    stop        made by the watcher: the run is to end
    notes       what the training loop says of itself, one JSON object a line

Times are of the machine's monotonic clock, which all of its processes share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS = ("kill", "raise", "hang", "nan")

CAUSE = "the wheel came off"
"""What the environment says when it raises."""

FOREVER = 2**40
"""Steps that no run gets to."""

_BEAT = struct.Struct("<dQ")


@dataclass(frozen=True, slots=True)
class Beat:
    """How far a process has come."""

    at: float
    steps: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Who misbehaves."""

    pid: int
    at: float
    steps: int
    """Of that process, the bad one left out."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One run's directory."""

    directory: Path

    def open(self) -> None:
        """Make what must be there before the run begins."""
        self._beats.mkdir()

    @property
    def flag(self) -> Path:
        """Return the file that asks for the fault."""
        return self.directory / "flag"

    @property
    def notes_file(self) -> Path:
        """Return the file of what the run says of itself."""
        return self.directory / "notes"

    @property
    def stop(self) -> Path:
        """Return the file that asks for the end."""
        return self.directory / "stop"

    @property
    def _beats(self) -> Path:
        return self.directory / "beats"

    @property
    def _claim(self) -> Path:
        return self.directory / "claim"

    def claim(self, steps: int) -> bool:
        """Take the fault upon this process; return False if another one has."""
        text = json.dumps({"pid": os.getpid(), "at": time.monotonic(), "steps": steps})
        draft = self.directory / f"claim-{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        try:
            os.link(draft, self._claim)  # whole, and once
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def claimed(self) -> Claim | None:
        """Return who misbehaves; None while nobody does."""
        with contextlib.suppress(FileNotFoundError):
            return Claim(**json.loads(self._claim.read_text(encoding="utf-8")))
        return None

    def beats(self) -> dict[int, Beat]:
        """Return the processes that have made steps."""
        found = {}
        for path in self._beats.iterdir():
            data = path.read_bytes()
            if len(data) == _BEAT.size:
                found[int(path.name)] = Beat(*_BEAT.unpack(data))
        return found

    def beat_file(self) -> Path:
        """Return this process's own file."""
        return self._beats / str(os.getpid())

    def note(self, event: str, **values: Any) -> None:  # noqa: ANN401  # whatever JSON takes
        """Add a line to the notes; any process may."""
        line = json.dumps({"event": event, "at": time.monotonic(), **values}) + "\n"
        with self.notes_file.open("ab") as file:
            file.write(line.encode())  # one write, at the end: lines of two do not mix

    def progress(self, **values: Any) -> None:  # noqa: ANN401  # see above
        """Note how far learning has come, beside how many steps were made by then."""
        made = sum(beat.steps for beat in self.beats().values())
        self.note("progress", made=made, **values)

    def notes(self) -> list[dict[str, Any]]:
        """Return all lines so far."""
        with contextlib.suppress(FileNotFoundError):
            text = self.notes_file.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            return [json.loads(line) for line in whole.splitlines()]
        return []


class Beats:
    """Leaves word of each step of this process; made before a fork, it is used after."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._file = -1
        self._pid = 0
        self.steps = 0

    def beat(self) -> None:
        """Count a step."""
        if os.getpid() != self._pid:
            self._pid, self.steps = os.getpid(), 0
            flags = os.O_RDWR | os.O_CREAT
            self._file = os.open(self._scene.beat_file(), flags, 0o600)
            known = os.pread(self._file, _BEAT.size, 0)
            if len(known) == _BEAT.size:  # of an environment that stood here before
                self.steps = _BEAT.unpack(known)[1]
        self.steps += 1
        os.pwrite(self._file, _BEAT.pack(time.monotonic(), self.steps), 0)

    def close(self) -> None:
        """Close the file."""
        if self._pid == os.getpid():
            os.close(self._file)
            self._pid = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run was started with."""

    scene: Scene
    fault: str
    careful: bool
    """With the framework's own settings against such faults, in place of its defaults."""

    algorithm: str = ""
    """Where a script knows several."""


def asked(description: str | None) -> Asked:
    """Read the command line of a script that runs one framework."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--careful", action="store_true")
    parser.add_argument("--algorithm", default="")
    given = parser.parse_args()
    return Asked(
        scene=Scene(given.directory),
        fault=given.fault,
        careful=given.careful,
        algorithm=given.algorithm,
    )


@contextlib.contextmanager
def telling(scene: Scene) -> Iterator[None]:
    """Note what the training loop's caller gets: an error, or nothing."""
    try:
        yield
    except BaseException as error:
        scene.note("error", type=type(error).__name__, message=str(error))
        raise
    scene.note("end")


def is_finite(numbers: Any) -> bool:  # noqa: ANN401  # arrays of several kinds
    """Tell whether the sum of some numbers is a number, which it is not if one of them is not."""
    return math.isfinite(float(numbers.sum()))
