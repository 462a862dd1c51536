"""What a run shows to others while it trains: sockets, files, secrets.

`asyncrl train` runs over TCP and therefore with keys; in full, with its defaults, too, and under
other masks. When it has saved a checkpoint, all its processes are looked at: what they listen on,
their arguments and their environment; then all its files, and, when it has ended, what it has
printed. Secret keys are noted as they are made, and looked for as text, as bytes, and encoded. A
file is open to others if its mode and those of the directories above say so.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from zmq.utils import z85

from asyncrl.checkpoint.checkpoint import Checkpointer
from tests.support import scale

TCP = ("--transport.bind", "tcp://127.0.0.1")
RUNS: list[tuple[Sequence[str], int]] = [(TCP, 0o022)]
if scale.full:
    RUNS += [(way, umask) for way in (TCP, ()) for umask in (0o022, 0o077, 0)][1:]
COMMAND = ["train", "dqn", "--env", "CartPole-v1", "--actors", "2", "--quiet"]
COMMAND += ["--save.interval-opt-steps", "200"]
DEADLINE_S = 120.0


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


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(("arguments", "umask"), RUNS)
def test_nothing_is_shown_to_others(tmp_path: Path, arguments: Sequence[str], umask: int) -> None:
    found = Exposed()
    look(tmp_path, arguments, umask, found)
    assert (found.sockets, found.private, found.results, found.secrets) == ([], [], [], [])
    assert bool(found.keys) == bool(arguments)
    assert found.looked_at > 10


def look(place: Path, arguments: Sequence[str], umask: int, found: Exposed) -> None:
    """Train until there is a checkpoint, look, and end the run."""
    notes, temporary, run = place / "keys", place / "t", place / "run"
    temporary.mkdir()
    command = [sys.executable, "-m", "tests.support.watched_run", str(notes), *COMMAND]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(  # our own module
            [*command, "--run-dir", str(run), *arguments],
            cwd=Path(__file__).parents[2],
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
            process.wait(DEADLINE_S)
        finally:
            process.kill()
    _look_for(needles, _files([place / "output", temporary, run]), found)


def _await_checkpoint(process: subprocess.Popen[bytes], checkpoints: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
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

    A file is private if no other user may enter its directory.
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
        with suppress(FileNotFoundError):  # the run is still writing
            if path.is_file():
                _look_in(path.name, path.read_bytes(), needles, found)


def _look_in(where: str, data: bytes, needles: list[bytes], found: Exposed) -> None:
    found.looked_at += 1
    if any(needle in data for needle in needles):
        found.secrets.append(where)


def test_what_others_can_open_is_found_unless_a_directory_shuts_them_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "hidden").mkdir(parents=True)
    for name in ("open", "closed", "hidden/open"):
        (run / name).touch()
    (run / "link").symlink_to("closed")
    for name, mode in {"closed": 0o600, "open": 0o644, "hidden/open": 0o666}.items():
        (run / name).chmod(mode)
    (run / "hidden").chmod(0o700)
    run.chmod(0o755)
    assert open_to_others(run) == ["0755 run", "0644 open"]
    run.chmod(0o700)
    assert open_to_others(run) == []


def test_listening_sockets_are_found() -> None:
    me = psutil.Process()
    assert _shown_sockets(me, has_keys=False) == []
    with socket.create_server(("127.0.0.1", 0)):
        assert len(_shown_sockets(me, has_keys=False)) == 1
        assert _shown_sockets(me, has_keys=True) == []
    with socket.create_server(("0.0.0.0", 0)):
        assert "listens on 0.0.0.0" in _shown_sockets(me, has_keys=True)[0]
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0abstract-socket-of-a-test")
        assert "abstract" in _shown_sockets(me, has_keys=True)[0]
