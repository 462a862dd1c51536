"""Actors as processes of this machine, which cannot outlive the learner.

`LocalLauncher` is the learner's side. `local_helper.py` is the helper process that starts actors,
`local_child.py` is what runs in an actor, `local_files.py` has the files between them and passes an
actor its body, which is in no file. `local_output.py` reads what actors print; it goes to this
process's stderr, each line after the name of its actor. Does not know what actors do.

Why not `multiprocessing`: its children import the user's main script again, its fork server
receives signals meant for the learner, and its children outlive a learner that is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import platform
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import cloudpickle

from asyncrl.core.errors import ActorFailed, ConfigError, describe_error
from asyncrl.core.launcher import ActorExit, Place, ProgressReport, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.local_files import (
    UNREPORTED_ERROR,
    HereLauncher,
    IncarnationFiles,
    LogReader,
    ProgressBoard,
    command,
    identity,
    kill_marked,
    make_body,
    marked,
    uninterrupted,
)

StartMethod = Literal["auto", "forkserver", "spawn"]

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Actors use the cores by their number; their own threads would compete for them."""

_CLOSE_S = 10.0
_FINAL_REPORT_S = 1.0
"""Seconds for a helper process that has closed its socket to exit with its exit code."""


@dataclass(slots=True)
class _Child:
    peer: Peer
    files: IncarnationFiles
    board: ProgressBoard
    log: LogReader
    pid: int | None = None
    statm: Path = Path()
    """The file with its memory use."""

    def pass_log_on(self) -> None:
        """Log here what the actor has logged since the last call."""
        for level, name, words in self.log.read():
            logging.getLogger(name).log(level, "%s", words)


class LocalLauncher(HereLauncher):
    """Starts actors through one helper process.

    Args:
        preload: Modules that actors need; loaded once, not by each of them. An early launch needs
            only the first of them.
        start_method: `forkserver` starts an actor in a few milliseconds. `spawn` takes as long as
            Python needs to load all modules. `auto` is `forkserver` under Linux, and `spawn` where
            system libraries do not survive a fork.
        names: Names of processes that are not actors, for what they print and for `ps`.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        start_method: StartMethod = "auto",
        names: Mapping[ActorId, str] | None = None,
    ) -> None:
        if start_method not in {"auto", "forkserver", "spawn"}:
            raise ConfigError(
                f"start_method must be auto, forkserver or spawn, got {start_method!r}"
            )
        if start_method == "auto":
            start_method = "forkserver" if sys.platform == "linux" else "spawn"
        self._children: dict[str, _Child] = {}
        self._never_begun: list[ActorExit] = []
        self._pending = b""
        self._arrived: list[dict[str, object]] = []
        """Messages that arrived while an order was sent; for `exits`."""
        self._printed = ""
        self._launched = False
        with ExitStack() as undo:
            with uninterrupted():
                super().__init__(names)
                undo.callback(self._remove_directory)
            self._control, theirs = socket.socketpair()
            undo.callback(self._control.close)
            self._news = select.poll()  # `select` accepts no descriptor above 1023
            self._news.register(self._control, select.POLLIN)
            self._both = select.poll()
            self._both.register(self._control, select.POLLIN | select.POLLOUT)
            with theirs, uninterrupted():  # a signal could kill it until it ignores them
                self._server = _start_server(
                    theirs, self._alive, self.directory, start_method, preload
                )
            undo.pop_all()

    def launch(self, peer: Peer, spec: Spec, *, early: bool = False) -> None:
        """Start an actor and return at once.

        `early` does not wait until all modules are preloaded; loading continues after the process
        has exited.
        """
        files = IncarnationFiles.of(self.directory, peer)
        if files.name in self._children:
            raise ValueError(f"{peer} is running already")
        data = pickled((f"asyncrl {self._name(peer.actor_id)}", peer, spec))
        self._launched |= not early
        with ExitStack() as undo:
            try:
                descriptor = make_body(data)
                undo.callback(os.close, descriptor)
                board = ProgressBoard(files.path("progress"), create=True)
            except OSError as error:  # a full disk, or a limit was reached
                self._check_directory(error)
                files.remove()
                why = describe_error(error)
                self._never_begun.append(ActorExit(peer=peer, code=1, error=why, began=False))
                return
            log = LogReader(files.path("log"))
            self._children[files.name] = _Child(peer, files, board, log)
            order = {"launch": files.name, "body": identity(descriptor), "early": early}
            self._order(order, descriptor)

    def exits(self, timeout_s: float) -> list[ActorExit]:
        """Return the actors that have exited, each once; wait at most `timeout_s` for one.

        Meanwhile logs here what actors have logged, and writes what they print to stderr.
        """
        deadline = time.monotonic() + timeout_s
        ended, self._never_begun = self._never_begun, []
        for child in self._children.values():
            child.pass_log_on()
        while not ended:
            left = max(0.0, deadline - time.monotonic())
            if not self._arrived and not self._news.poll(1000 * left):
                break
            arrived, self._arrived = self._arrived or self._receive(), []
            for message in arrived:
                ended += self._take(message)
            self._print()
        return ended

    def progress(self, peer: Peer) -> ProgressReport:
        """Return what a running actor has last reported."""
        return self._children[IncarnationFiles.of(self.directory, peer).name].board.read()

    def memory_bytes(self, peer: Peer) -> int:
        """Return the memory that a running actor holds now; 0 if the system does not report it."""
        statm = self._children[IncarnationFiles.of(self.directory, peer).name].statm
        try:
            return int(statm.read_text().split()[1]) * mmap.PAGESIZE
        except OSError:  # it has just exited, or not started
            return 0

    def place(self, peer: Peer) -> Place:
        """Return where a running actor runs: on this machine."""
        child = self._children[IncarnationFiles.of(self.directory, peer).name]
        return Place(platform.node(), child.pid or 0)

    def finish(self, peer: Peer) -> None:
        """Ask a running actor to send what it has and exit with code 0; do not wait for it."""
        self._children[IncarnationFiles.of(self.directory, peer).name].board.finish()

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        """Kill an actor and all processes it has started; its exit follows in `exits`."""
        name = IncarnationFiles.of(self.directory, peer).name
        if name in self._children:
            self._order({"kill": name, "stacks": with_stacks})

    def close(self) -> None:
        """Kill what still runs and release everything; may be called again."""
        # The helper sees the end of the connection, kills all actors and exits. Unlike `close`,
        # this works while a process that the learner has forked holds a copy of the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            # A helper without actors may still be loading modules for seconds; do not wait for
            # that.
            self._server.wait(_CLOSE_S if self._launched or self._children else 0.0)
        except subprocess.TimeoutExpired:
            self._kill_everything()
        for child in self._children.values():
            child.board.close()
        self._children.clear()
        self._remove_directory()

    def _check_directory(self, error: OSError | None = None) -> None:
        """Raise `ActorFailed` if the directory was removed."""
        if not self.directory.is_dir():
            raise ActorFailed(
                f"{self.directory}, with the sockets and files of this run's actors, was removed, "
                "so no actor can start any more. Exclude asyncrl-* from whatever cleans its "
                "parent directory, or set TMPDIR to a directory that is not cleaned"
            ) from error

    def _order(self, order: dict[str, object], *descriptors: int) -> None:
        data = json.dumps(order).encode() + b"\n"
        # The helper reads no orders while it waits for its answers to be read.
        while not self._both.poll()[0][1] & select.POLLOUT:
            self._arrived += self._receive()
        try:
            sent = socket.send_fds(self._control, [data], descriptors)
            self._control.sendall(data[sent:])
        except OSError as error:
            self._on_server_death(error)

    def _receive(self) -> list[dict[str, object]]:
        try:
            received = self._control.recv(65536)
        except OSError as error:
            self._on_server_death(error)
        if not received:
            self._on_server_death(None)
        *lines, self._pending = (self._pending + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _take(self, message: dict[str, object]) -> list[ActorExit]:
        match message:
            case {"started": str(name), "pid": int(pid)}:
                self._children[name].pid = pid
                self._children[name].statm = Path(f"/proc/{pid}/statm")
            case {"said": str(name), "line": str(line)}:
                actor_id = self._children[name].peer.actor_id
                self._printed += f"{self._name(actor_id)}: {line}\n"
            case {
                "ended": str(name),
                "code": int(code),
                "peak_bytes": int(size),
                "error": str(why),
            }:
                if code in UNREPORTED_ERROR:
                    self._check_directory()
                return [_exit_of(self._children.pop(name), code, size, why)]
        return []

    def _print(self) -> None:
        """Write what actors have printed in one piece: each write redraws the live view."""
        printed, self._printed = self._printed, ""
        # The reader may have exited; `sys.stderr` is None if it was closed from the start.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(printed)

    def _on_server_death(self, error: OSError | None) -> NoReturn:
        """Kill the actors, which nothing supervises any more, and raise."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(_FINAL_REPORT_S)
        self._kill_everything()
        code = self._server.returncode
        raise ActorFailed(
            f"the process that starts actors has exited (code {code}); all actors were killed, and "
            "the run ends. If the machine ran out of memory, run fewer actors, or fewer "
            "environments in each"
        ) from error

    def _kill_everything(self) -> None:
        self._server.kill()
        self._server.wait()
        # Actors kill their own groups at the end of its pipe; their numbers may be reused by now.
        kill_marked(self.directory)


def _start_server(
    control: socket.socket,
    alive: int,
    directory: Path,
    start_method: str,
    preload: Sequence[str],
) -> subprocess.Popen[bytes]:
    arguments = (str(directory), start_method, str(os.getpid()), json.dumps(list(preload)))
    return subprocess.Popen(  # noqa: S603  # our own interpreter and arguments
        command("local_helper", str(control.fileno()), str(alive), *arguments),
        stdin=subprocess.DEVNULL,
        pass_fds=[control.fileno(), alive],
        env=marked({**os.environ, **_ONE_THREAD}, directory),
        start_new_session=True,
    )


def pickled(body: object) -> bytes:
    """Pickle an actor's body for its process, or raise `ConfigError`."""
    # In a process spawned by multiprocessing this is the user's script, which actors do not load.
    if script := sys.modules.get("__mp_main__"):
        cloudpickle.register_pickle_by_value(script)
    try:
        data: bytes = cloudpickle.dumps(body)
    except Exception as error:
        raise ConfigError(
            f"the body of an actor cannot be sent to its process: {type(error).__name__}: {error}. "
            "Pass factories and configs, which build environments, sockets and locks in that "
            "process, instead of such objects"
        ) from error
    return data


def packed(run: Callable[..., object]) -> bytes:
    """Return what a host runs, on its way to a machine that has the same modules."""
    return pickled((sys.path, pickled(run)))


def unpacked(body: bytes) -> Callable[..., object]:
    """Return there what was packed; modules are found as where that was done."""
    paths, run = cloudpickle.loads(body)
    sys.path += [path for path in paths if path not in sys.path]
    found: Callable[..., object] = cloudpickle.loads(run)
    return found


def _exit_of(child: _Child, code: int, peak_bytes: int, why: str) -> ActorExit:
    """Return how a child exited; `why` is the reason if it never started, or empty."""
    child.pass_log_on()
    error, text, began = (why, "", False) if why else child.files.read_error()
    if code in UNREPORTED_ERROR:
        error = f"its error, printed above, could not be written to {child.files.path('error')}"
        code, began = 1, code == UNREPORTED_ERROR[True]
    last = child.board.read()
    child.board.close()
    child.files.remove()
    return ActorExit(
        peer=child.peer,
        code=code,
        text=text,
        error=error,
        began=began,
        last=last,
        peak_bytes=peak_bytes,
    )
