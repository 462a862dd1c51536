"""A process that has loaded what runs need; tests fork slow-starting processes from it.

It takes requests, one per connection: a line of JSON, and the descriptors of the child, the first
three as stdin, stdout and stderr. It answers with one line when the child has started, and with
another when the child has ended. At the end of its stdin, which closes with the process that
started it, it kills its children and ends.

A child is an ordinary process, with its own signals, exit code, environment and directory; but its
parent is this process, and not the test that requested it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, NamedTuple, TextIO

from asyncrl.cli.main import main as asyncrl
from asyncrl.fleet import local, local_helper
from asyncrl.fleet.local_files import marked

Does = Literal["asyncrl", "module", "code"]
"""A command line of ours; a module with its arguments; a program with its own."""

MODULE = __name__
AVAILABLE = hasattr(os, "pidfd_open")
"""Whether the system reports the end of processes through descriptors, as Linux does."""

_BOOT = f"import sys; from {MODULE} import main; sys.exit(main(*sys.argv[1:]))"
_LOADED = (
    "asyncrl.actor.process",
    "asyncrl.agents.parts.torch_agent",
    "asyncrl.cli.eval",
    "asyncrl.cli.resume",
    "asyncrl.cli.train",
    "asyncrl.envs.gym",
    "asyncrl.run.asynchronous",
    "asyncrl.transport.zeromq",
    "tests.support.fakes",
)
_MOST_DESCRIPTORS = 16
_DEADLINE_S = 60.0

start_fresh = local._start_server
"""Starts a launcher's helper process as users have it."""


class Forked:
    """A child of the warm process; similar to `subprocess.Popen`."""

    stdout: TextIO
    """What it says, as of `stderr`, where `started` reads it from a pipe."""
    stderr: TextIO

    def __init__(self, place: Path, request: dict[str, object], held: Sequence[int]) -> None:
        self.returncode: int | None = None
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            self._news = undo.enter_context(socket.socket(socket.AF_UNIX))
            self._news.settimeout(_DEADLINE_S)
            self._news.connect(str(place))
            line = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._news, [line], held)
            self._news.sendall(line[sent:])
            self._reports = undo.enter_context(self._news.makefile("rb"))
            self.pid: int = json.loads(self._reports.readline())["pid"]
            self._undo = undo.pop_all()

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code as soon as it has ended."""
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._news, select.POLLIN)
            if not ready.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"child {self.pid}", timeout or 0.0)
            self.returncode = json.loads(self._reports.readline())["code"]
            self._undo.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end was not reported yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Return what else it says until its end."""
        with ThreadPoolExecutor(2) as pool:
            outputs = [pool.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            return outputs[0].result(), outputs[1].result()

    def __del__(self) -> None:
        """Close the connection: the end of a launcher's helper is not awaited."""
        self._undo.close()


Process = subprocess.Popen[str] | Forked


class _Warm:
    """Where the process listens, and the process once it was needed."""

    def __init__(self, place: Path, listening: socket.socket | None) -> None:
        self.place = place
        self._listening = listening
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs already."""
        if self._process or not self._listening:
            return
        path = os.pathsep.join(os.fspath(path) for path in sys.path if path)
        descriptor = self._listening.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(self.place), str(descriptor)],
            env={**os.environ, **local._ONE_THREAD, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
        )

    def end(self) -> None:
        """End it until it is needed again."""
        if self._process:
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(_DEADLINE_S)
            self._process = None


_current: list[_Warm] = []
"""The one to ask, if there is one."""


@contextlib.contextmanager
def listening(directory: Path) -> Iterator[None]:
    """Let there be a warm process; it starts when it is first asked for something."""
    with socket.socket(socket.AF_UNIX) as bound:
        place = directory / "warm"
        bound.bind(str(place))
        bound.listen()
        warm = _Warm(place, bound)
        _current.append(warm)
        try:
            yield
        finally:
            _current.remove(warm)
            warm.end()


def end() -> None:
    """End the process; it starts again with the next request."""
    for warm in _current:
        warm.end()


def fork(
    does: Does | Literal["help"], arguments: Sequence[str], held: Sequence[int], **more: object
) -> Forked:
    """Have a child of the warm process do something; `more` changes its surroundings."""
    (warm,) = _current
    warm.start()
    request = {
        "does": does,
        "arguments": arguments,
        "environment": dict(os.environ),
        "cwd": str(Path.cwd()),
        "path": [os.fspath(path) for path in sys.path],
        "fresh_helpers": False,
        **more,
    }
    return Forked(warm.place, request, held)


def run(
    does: Does, arguments: Sequence[str], *, cwd: Path, timeout_s: float, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run something in a process, and return how it ended, and what it wrote.

    It is forked from the warm process, unless it must be `fresh` or there is no warm process.
    """
    if fresh or not AVAILABLE:
        return subprocess.run(
            _command(does, arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
        child = fork(does, arguments, [f.fileno() for f in (nothing, out, err)], cwd=str(cwd))
        try:
            code = child.wait(timeout_s)
        finally:
            child.kill()
        out.seek(0)
        err.seek(0)
        outputs = out.read().decode(), err.read().decode()
        return subprocess.CompletedProcess([does, *arguments], code, *outputs)


@contextlib.contextmanager
def started(
    does: Does, arguments: Sequence[str], *, cwd: Path, fresh: bool = False
) -> Iterator[Process]:
    """Have a process do something, with launchers that start their helpers as users have them.

    It leads a separate process group. Whatever happens in the block, it has ended afterwards.
    """
    if fresh or not AVAILABLE:
        with subprocess.Popen(
            _command(does, arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            try:
                yield process
            finally:
                process.kill()
        return
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        pipes = [stack.enter_context(os.fdopen(pipe)) for pipe in (out, err)]
        try:
            held = [nothing.fileno(), its_out, its_err]
            child = fork(does, arguments, held, cwd=str(cwd), fresh_helpers=True)
        finally:
            os.close(its_out)
            os.close(its_err)
        child.stdout, child.stderr = pipes
        try:
            yield child
        finally:
            child.kill()
            child.wait(_DEADLINE_S)


def _command(does: Does, arguments: Sequence[str]) -> list[str]:
    """Return what does the same in a fresh interpreter."""
    if does == "asyncrl":
        return [sys.executable, "-m", "asyncrl", *arguments]
    return [sys.executable, "-m" if does == "module" else "-c", *arguments]


def start_server(
    control: socket.socket, alive: int, directory: Path, start_method: str, preload: Sequence[str]
) -> Forked | subprocess.Popen[bytes]:
    """Start a launcher's helper process, in place of `local._start_server`."""
    if start_method != "forkserver":
        return start_fresh(control, alive, directory, start_method, preload)
    environment = marked({**os.environ, **local._ONE_THREAD}, directory)
    with Path(os.devnull).open("rb") as nothing:
        held = [nothing.fileno(), 1, 2, control.fileno(), alive]
        arguments = [str(directory), start_method, json.dumps(list(preload))]
        return fork("help", arguments, held, environment=environment)


class _Child(NamedTuple):
    """What a newly forked process must do."""

    does: str
    arguments: list[str]
    held: list[int]
    fresh_helpers: bool


def main(place: str, descriptor: str) -> int:
    """Load, then fork while the process that started this one runs; run requests in children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a launcher that starts it has some wait
    for module in _LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    child = _Server(socket.socket(fileno=int(descriptor))).run()
    if not child:
        return 0
    if not child.fresh_helpers:
        _current.append(_Warm(Path(place), None))
        local._start_server = start_server  # type: ignore[assignment]
    match child.does:
        case "help":
            control, alive = child.held
            directory, start_method, preload = child.arguments
            learner = str(os.getppid())
            local_helper.main([str(control), str(alive), directory, start_method, learner, preload])
        case "asyncrl":
            sys.argv = ["asyncrl", *child.arguments]
            return asyncrl()
        case "module":
            name, *arguments = child.arguments
            sys.argv = [name, *arguments]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case "code":
            code, *arguments = child.arguments
            sys.argv = ["-c", *arguments]
            exec(code, sys.modules["__main__"].__dict__)
    return 0


class _Server:
    def __init__(self, bound: socket.socket) -> None:
        self._bound = bound
        self._starter = os.dup(0)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """Descriptor that shows an end -> the process, and the socket that gets the report."""
        self._ready = select.poll()
        self._ready.register(self._starter, select.POLLIN)
        self._ready.register(bound, select.POLLIN)

    def run(self) -> _Child | None:
        """Fork as asked; return in each child, and with nothing once the starter has gone."""
        while True:
            for descriptor, _ in self._ready.poll():
                if descriptor == self._starter:
                    for pid, _ in self._running.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                if descriptor in self._running:
                    self._bury(descriptor)
                elif child := self._fork():
                    return child

    def _fork(self) -> _Child | None:
        asked, _ = self._bound.accept()
        request, held = _receive(asked)
        pid = os.fork()
        if pid == 0:
            for foreign in (self._bound, asked, *(other for _, other in self._running.values())):
                foreign.close()
            for number in (self._starter, *self._running):
                os.close(number)
            return _born(request, held)
        for number in held:
            os.close(number)
        _tell(asked, {"pid": pid})
        end = os.pidfd_open(pid)
        self._running[end] = (pid, asked)
        self._ready.register(end, select.POLLIN)
        return None

    def _bury(self, end: int) -> None:
        self._ready.unregister(end)
        os.close(end)
        pid, asked = self._running.pop(end)
        _, status = os.waitpid(pid, 0)
        _tell(asked, {"code": os.waitstatus_to_exitcode(status)})
        asked.close()


def _receive(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, held, _, _ = socket.recv_fds(asked, 65536, _MOST_DESCRIPTORS)
    while not data.endswith(b"\n"):
        data += asked.recv(65536)
    return json.loads(data), held


def _tell(asked: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # it has gone
        asked.sendall(json.dumps(message).encode() + b"\n")


def _born(request: dict[str, Any], held: list[int]) -> _Child:
    """Become like a process that has just been started."""
    os.setsid()
    for number, descriptor in enumerate(held[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The streams of the parent remember positions in other files.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    importlib.invalidate_caches()
    return _Child(request["does"], request["arguments"], held[3:], request["fresh_helpers"])
