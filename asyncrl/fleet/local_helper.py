"""The launcher's helper process: starts actors, reports their exits, and leaves no process behind.

It has loaded what actors need, so that a forked actor starts at once. It runs in a separate session
and sees the learner's end, whatever its cause. Then it kills every actor with all that they have
started, and removes the private directory. Does not know what actors do.

One line of JSON each. From the learner: `{"launch": NAME, "body": ID, "early": BOOL}`, with a
descriptor of the body (`local_files.py`), and `{"kill": NAME, "stacks": BOOL}`. Orders wait until
all modules are loaded. An early launch waits for the first module only, and loading pauses until
that process has exited. To the learner: `{"started": NAME, "pid": PID}`, `{"said": NAME, "line":
TEXT}` for what it prints, and `{"ended": NAME, "code": CODE, "peak_bytes": BYTES, "error":
WHY_IT_NEVER_BEGAN}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.errors import describe_error
from asyncrl.fleet import local_child
from asyncrl.fleet.local_files import (
    WAITING,
    IncarnationFiles,
    command,
    identity,
    incarnation_mark,
    incarnation_of,
)
from asyncrl.fleet.local_output import Outputs
from asyncrl.fleet.process_name import set_title

_LOOK_S = 0.5
"""Seconds between two checks whether the learner still runs, in case a process that it has forked
keeps its end of the socket open."""

_TO_ALL = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)
"""Signals that schedulers and service managers send to all processes of a job."""

_STACKS_S = 0.5
_MOST_BODIES = 16
"""Maximum number of descriptors received at once; the system keeps the others for the next call."""

_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN = Path("/proc/thread-self/children")
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit in which the system reports the peak memory of a process."""


def main(arguments: Sequence[str]) -> None:
    """Serve until the learner has exited."""
    _leave_signals_to_learner()
    set_title("asyncrl helper")
    control, alive, directory, start_method, learner, preload = arguments
    with contextlib.suppress(OSError):  # stderr may be closed
        os.dup2(2, 1)  # preloaded modules may print
    _adopt_orphans()
    modules = json.loads(preload) if start_method == "forkserver" else []
    gc.disable()  # until `_freeze`: modules make a million objects, and hardly any garbage
    for module in modules[:1]:
        _load(module)
    if not modules[1:]:
        _freeze()
    for descriptor in (control, alive):
        os.set_inheritable(int(descriptor), False)
    server = _Server(
        socket.socket(fileno=int(control)), Path(directory), start_method, alive=int(alive)
    )
    try:
        server.run(int(learner), modules[1:])
    finally:
        server.kill_all()
        shutil.rmtree(directory, ignore_errors=True)
    # The learner waits for this process to exit. Skip the interpreter's shutdown, which would
    # finalise torch module by module.
    os._exit(0)


def _leave_signals_to_learner() -> None:
    """Ignore signals that are sent to a whole job: the learner saves, or ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # actors inherit this and keep it
    for number in _TO_ALL:
        if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` does
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITING)


class _Server:
    def __init__(
        self, control: socket.socket, directory: Path, start_method: str, *, alive: int
    ) -> None:
        self._control = control
        self._alive = alive
        self._directory = directory
        self._forks = start_method == "forkserver"
        self._pids: dict[str, int] = {}
        self._kill_at: dict[str, float] = {}
        self._bodies: dict[int, int] = {}
        """Descriptors of bodies by identity, until their launch order arrives."""
        self._to_load: deque[str] = deque()
        self._later: list[dict[str, object]] = []
        """Orders that wait until all modules are loaded."""
        self._lifeline, self._lifeline_server = os.pipe()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._outputs = Outputs(self._poll)
        self._writable = select.poll()
        self._writable.register(self._control, select.POLLOUT)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only needs to wake the poll

    def run(self, learner: int, modules: Sequence[str] = ()) -> None:
        """Carry out orders until the learner closes its end or has exited without doing so.

        Between orders it loads modules.
        """
        self._to_load.extend(modules)
        pending = b""
        while os.getppid() == learner:
            ready = dict(self._poll.poll(1000 * self._patience_s()))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._control.fileno() in ready:
                received = b""
                with contextlib.suppress(ConnectionError):
                    received = self._receive()
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            for name, text in self._outputs.look(ready):
                self._say(name, text)
            self._kill_due()
            self._reap()
            if not ready:
                self._load_next()

    @property
    def _loads(self) -> bool:
        return bool(self._to_load) and not self._pids

    def _load_next(self) -> None:
        """Load the next module, if no process runs; after the last, carry out waiting orders."""
        if self._loads:
            _load(self._to_load.popleft())
            if not self._to_load:
                _freeze()
                later, self._later = self._later, []
                for order in later:
                    self._obey(order)

    def kill_all(self) -> None:
        """Kill every actor and all that they have started, including those in other sessions."""
        for pid in self._pids.values():
            _kill_group(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()
        # Killing one may orphan others; each round finds the next generation.
        while strays := self._strays():
            for pid in strays:
                _kill_group(pid)
                os.waitpid(pid, 0)

    def _receive(self) -> bytes:
        data, bodies, _, _ = socket.recv_fds(self._control, 65536, _MOST_BODIES)
        for body in bodies:
            os.set_inheritable(body, False)  # some systems do not report it
            self._bodies[identity(body)] = body
        return data

    def _patience_s(self) -> float:
        if self._loads:
            return 0.0
        due = min(self._kill_at.values(), default=time.monotonic() + _LOOK_S)
        return min(_LOOK_S, self._outputs.wait_s, max(0.0, due - time.monotonic()))

    def _obey(self, order: dict[str, object]) -> None:
        if self._to_load and not order.get("early") and order.get("kill") not in self._pids:
            self._later.append(order)
            return
        match order:
            case {"launch": str(name), "body": int(body_id)}:
                self._launch(name, body_id)
            case {"kill": str(name), "stacks": bool(with_stacks)}:
                self._kill_at[name] = time.monotonic() + (_STACKS_S if with_stacks else 0.0)
                if with_stacks and name in self._pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._pids[name], local_child.STACKS_SIGNAL)

    def _launch(self, name: str, body_id: int) -> None:
        try:
            pid = self._begin(name, body_id)
        except OSError as error:
            why = describe_error(error)
            self._send({"ended": name, "code": 1, "peak_bytes": 0, "error": why})
            return
        self._pids[name] = pid
        self._send({"started": name, "pid": pid})

    def _begin(self, name: str, body_id: int) -> int:
        """Start a process; only it keeps the descriptor of its body."""
        if body_id not in self._bodies:  # the system dropped it, for lack of descriptors
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        body = self._bodies.pop(body_id)
        try:
            output = self._outputs.open(name)
            try:
                start = self._fork if self._forks else self._spawn
                return start(name, body, output)
            except OSError:
                self._outputs.end(name, failed=True)
                raise
            finally:
                os.close(output)
        finally:
            os.close(body)

    def _fork(self, name: str, body: int, output: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # the child does the same, and may have been first
            return pid
        code = 1
        try:
            os.setpgid(0, 0)
            for number in (1, 2):
                os.dup2(output, number)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *_TO_ALL):
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            for held in (self._control, self._woken, self._wake):
                held.close()
            os.close(self._lifeline_server)
            os.close(self._alive)  # otherwise the directory would stay in use until it exits
            for foreign in (output, *self._bodies.values(), *self._outputs.readers()):
                os.close(foreign)
            os.environ.update(incarnation_mark(self._directory, name))
            gc.enable()
            code = local_child.live(IncarnationFiles(self._directory, name), self._lifeline, body)
        finally:
            # Never return into the helper's own frames, whatever happened.
            os._exit(code)

    def _spawn(self, name: str, body: int, output: int) -> int:
        child = command("local_child", str(self._directory), name, str(self._lifeline), str(body))
        for inherited in (self._lifeline, body):
            os.set_inheritable(inherited, True)
        # Popen would wait for processes that it no longer tracks; these are waited for here.
        environment = {**os.environ, **incarnation_mark(self._directory, name)}
        to_pipe = [(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)]
        return os.posix_spawn(sys.executable, child, environment, setpgroup=0, file_actions=to_pipe)

    def _kill_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._kill_at.items() if due <= now]:
            del self._kill_at[name]
            if name in self._pids:
                _kill_group(self._pids[name])

    def _reap(self) -> None:
        for name, pid in list(self._pids.items()):
            ended = _reap(pid)
            if ended is not None:
                del self._pids[name]
                code, peak_bytes = ended
                for line in self._outputs.end(name, failed=code != 0):
                    self._say(name, line)
                self._send({"ended": name, "code": code, "peak_bytes": peak_bytes, "error": ""})
        for pid in self._strays():
            reaped, _ = os.waitpid(pid, os.WNOHANG)
            if not reaped and incarnation_of(pid, self._directory) not in {None, *self._pids}:
                _kill_group(pid)  # its exit wakes this process to look at its orphans in turn

    def _strays(self) -> set[int]:
        """Return orphans of actors, which have become this process's children."""
        return _children() - set(self._pids.values())

    def _say(self, name: str, line: str) -> None:
        """Pass a line on; never block, even if the learner has stopped reading."""
        if self._writable.poll(0):
            self._send({"said": name, "line": line})
        else:
            self._outputs.hide(name, line)

    def _send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the learner is gone; `run` is about to see it
            self._control.sendall(json.dumps(message).encode() + b"\n")


def _reap(pid: int) -> tuple[int, int] | None:
    """Return the code and peak memory of a process that has exited; kill the rest of its group."""
    if hasattr(os, "waitid"):
        # Until the dead process is waited for, its number is not reused.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, pid, flags) is None:
            return None
        _kill_group(pid)
    ended, status, used = os.wait4(pid, os.WNOHANG)
    if not ended:
        return None
    if not hasattr(os, "waitid"):
        # Its number is free now, but not as a group's number while the group has members.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), _RSS_UNIT_BYTES * used.ru_maxrss


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the group may not exist yet, or no more
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """Return this process's children; empty where the system does not report them."""
    try:
        return {int(pid) for pid in _CHILDREN.read_text().split()}
    except OSError:
        return set()


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _load(module: str) -> None:
    """Import what actors will need; a failure is repeated, and reported, in the actor."""
    with contextlib.suppress(Exception):
        importlib.import_module(module)


def _freeze() -> None:
    """Keep the garbage collector from writing to memory that forks share.

    To collect once before would take a fifth of a second, for 1 MB.
    """
    gc.freeze()
    gc.enable()
