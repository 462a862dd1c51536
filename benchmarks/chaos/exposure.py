"""What a run shows to others while it trains: sockets, files, secrets (target 19).

`asyncrl train` runs with its defaults, and once with TCP and therefore with keys. When it has
saved a checkpoint, all its processes are looked at: what they listen on, their arguments and their
environment; then all its files, and, when it has ended, what it has printed. Secret keys are noted
as they are made, and looked for as text, as bytes, and encoded. Private files are temporary ones,
sockets and checkpoints; the directory of the run, with its metrics, summary and settings, is
counted apart. A file is open to others if its mode and those of the directories above say so.
"""

from __future__ import annotations

import base64
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from zmq.utils import z85

from asyncrl.checkpoint.checkpoint import Checkpointer
from benchmarks.chaos.finding import Finding, Size
from benchmarks.common import ROOT, note

_WAYS: dict[str, Sequence[str]] = {
    "default": (),
    "tcp": ("--transport.bind", "tcp://127.0.0.1"),
}
_UMASKS: dict[Size, Sequence[int]] = {"small": (0o022,), "full": (0o022, 0o077, 0)}
_COMMAND = ["train", "dqn", "--env", "CartPole-v1", "--actors", "2", "--quiet"]
_COMMAND += ["--trainer.books.save-interval-opt-steps", "200"]
_DEADLINE_S = 120.0


@dataclass(slots=True)
class Exposed:
    """What others could see, by name."""

    sockets: list[str] = field(default_factory=list)
    """That another host can reach, or every user of this one without a key."""

    private: list[str] = field(default_factory=list)
    """Sockets, temporary files and checkpoints that they can open."""

    results: list[str] = field(default_factory=list)
    """The same of the run's directory: metrics, summary, settings."""

    secrets: list[str] = field(default_factory=list)
    """Where one was found."""

    looked_at: int = 0
    """Processes, files and outputs in which secrets were looked for."""

    keys: int = 0


def measure(size: Size, directory: Path) -> list[Finding]:
    """Look at runs of all ways, under some masks."""
    found = Exposed()
    for way, arguments in _WAYS.items():
        for umask in _UMASKS[size]:
            place = directory / f"{way}-{umask:03o}"
            place.mkdir()
            note(f"{way}, umask {umask:03o}")
            _look(place, arguments, umask, found)
    return _findings(found)


def _look(place: Path, arguments: Sequence[str], umask: int, found: Exposed) -> None:
    """Train until there is a checkpoint, look, and end the run."""
    notes, temporary, run = place / "keys", place / "t", place / "run"
    temporary.mkdir()
    command = [sys.executable, "-m", "benchmarks.chaos.watched_run", str(notes), *_COMMAND]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own module
            [*command, "--run-dir", str(run), *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=output,
            stderr=subprocess.STDOUT,
            umask=umask,
        )
        try:
            _await_checkpoint(process, run / "checkpoints")
            keys = notes.read_bytes().split() if notes.exists() else []
            found.keys += len(keys)
            needles = [needle for key in keys for needle in encodings(key)]
            _look_at_processes(process, needles, found)
            for private in (*temporary.glob("asyncrl-*"), *run.glob("checkpoints/*")):
                found.private += open_to_others(private)
            found.results += open_to_others(run)
            _look_for(needles, _files([temporary, run]), found)
            process.send_signal(signal.SIGINT)
            process.wait(_DEADLINE_S)
        finally:
            process.kill()
    _look_for(needles, _files([place / "output", temporary, run]), found)


def _await_checkpoint(process: subprocess.Popen[bytes], checkpoints: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while Checkpointer(checkpoints).latest() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no checkpoint in {checkpoints}, exit code {process.poll()}")
        time.sleep(0.05)


def _look_at_processes(
    learner: subprocess.Popen[bytes], needles: list[bytes], found: Exposed
) -> None:
    family = psutil.Process(learner.pid)
    for process in (family, *family.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            found.sockets += _shown_sockets(process, has_keys=bool(needles))
            for what in ("cmdline", "environ"):
                data = Path(f"/proc/{process.pid}/{what}").read_bytes()
                _look_in(f"{what} of {process.name()}", data, needles, found)


def _shown_sockets(process: psutil.Process, *, has_keys: bool) -> list[str]:
    """Return addresses of listening sockets that are not private."""
    own = {"127.0.0.1", "::1"} if has_keys else set()
    listening = [
        each.laddr[0]
        for each in process.net_connections(kind="inet")
        if each.status == psutil.CONN_LISTEN
    ]
    shown = [f"{process.name()} listens on {host}" for host in listening if host not in own]
    for each in process.net_connections(kind="unix"):
        if str(each.laddr).startswith(("@", "\0")):
            shown += [f"{process.name()} has an abstract socket"]
    return shown


def open_to_others(path: Path) -> list[str]:
    """Return what others can open of a file, or of a directory and all in it, with its mode.

    What is in a directory that nobody else may enter is as private as that.
    """
    mode = stat.S_IMODE(path.lstat().st_mode)
    if path.is_symlink() or not mode & 0o077:
        return []
    shown = [f"{mode:04o} {path.name}"]
    if path.is_dir() and mode & 0o011:
        shown += [each for child in path.iterdir() for each in open_to_others(child)]
    return shown


def encodings(key: bytes) -> list[bytes]:
    """Return the forms in which a secret key of 40 letters might be found."""
    raw = z85.decode(key)
    return [key, raw, raw.hex().encode(), base64.b64encode(raw)]


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        yield from (place,) if place.is_file() else place.rglob("*")


def _look_for(needles: list[bytes], paths: Iterator[Path], found: Exposed) -> None:
    for path in paths:
        with suppress(FileNotFoundError):  # the run goes on
            if path.is_file():
                _look_in(path.name, path.read_bytes(), needles, found)


def _look_in(where: str, data: bytes, needles: list[bytes], found: Exposed) -> None:
    found.looked_at += 1
    if any(needle in data for needle in needles):
        found.secrets.append(where)


def _findings(found: Exposed) -> list[Finding]:
    def finding(what: str, shown: list[str], of: str, *, passed: bool) -> Finding:
        names = f", as {', '.join(sorted(set(shown)))}" if shown else ""
        return Finding(
            target=19,
            what=what,
            measured=f"{len(shown)}{of}{names}",
            promised="0",
            passed=passed,
            numbers={"shown": len(shown)},
        )

    of = f" of {found.keys} keys in {found.looked_at} places"
    results = finding("the run's directory for others", found.results, "", passed=not found.results)
    return [
        finding("sockets for others", found.sockets, "", passed=not found.sockets),
        finding("private files for others", found.private, "", passed=not found.private),
        results,
        finding("secrets", found.secrets, of, passed=not found.secrets and found.keys >= 2),
    ]
