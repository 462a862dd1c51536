"""A socket in a run's directory, through which other commands of the same user reach the run.

One request and one answer per connection, each a line of JSON. The socket can be reached on the
run's machine only, by its user and by root. Does not know what requests mean.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asyncrl.core.errors import AsyncRLError, ConfigError
from asyncrl.core.interrupter import start_thread
from asyncrl.core.unix_peer import is_own

Plain = Mapping[str, Any]

SOCKET = "control"
"""The socket's name in the run directory."""

_UNREADY = "control.unready"
"""Its name before it listens."""

_CLIENT_S = 5.0
"""Timeout for a client to send its request and take the answer."""

_ANSWER_S = 30.0
_MOST_BYTES = 4 << 20


class ControlSocket:
    """Answers requests in a thread, from construction to `close`."""

    def __init__(self, run_dir: Path, answer: Callable[[Plain], Plain]) -> None:
        """Open the socket; raise `OSError` if the directory cannot hold one.

        `answer` is called in the thread. Its `AsyncRLError` becomes the answer `{"error": ...}`.
        """
        self._run_dir = run_dir
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            (run_dir / SOCKET).unlink(missing_ok=True)  # of a learner that was killed
            unready = run_dir / _UNREADY
            unready.unlink(missing_ok=True)
            with _short(run_dir, _UNREADY) as path:
                self._listener.bind(path)
            unready.chmod(0o600)  # before anybody can connect
            self._listener.listen()
            unready.rename(run_dir / SOCKET)
        except OSError:
            self._listener.close()
            raise
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="asyncrl-control", daemon=True)
        start_thread(self._thread)

    def close(self) -> None:
        """End the thread and remove the socket; may be called again."""
        with suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join(2 * _CLIENT_S)
        for each in (self._listener, self._wake, self._woken):
            each.close()
        with suppress(OSError):
            (self._run_dir / SOCKET).unlink(missing_ok=True)

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._listener, select.POLLIN)
        ready.register(self._woken, select.POLLIN)
        while True:
            found = {descriptor for descriptor, _ in ready.poll()}
            if self._woken.fileno() in found:
                return
            with suppress(OSError):  # a client that has gone, or sends no request
                connection, _ = self._listener.accept()
                with connection:
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_CLIENT_S)
        if not is_own(connection):
            return
        request = _read(connection)
        try:
            answer = self._answer(request)
        except AsyncRLError as error:
            answer = {"error": str(error)}
        connection.sendall(json.dumps(answer).encode() + b"\n")


def ask(run_dir: Path, request: Plain) -> Plain:
    """Return the answer of the run in this directory.

    Raises `ConfigError` with the run's objection, and `OSError` if no run listens there.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        with _short(run_dir) as path:
            connection.connect(path)
        if not is_own(connection):
            raise PermissionError(f"{run_dir / SOCKET} belongs to another user")
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = _read(connection)
    if "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer


@contextmanager
def _short(run_dir: Path, name: str = SOCKET) -> Iterator[str]:
    """Yield a path of the socket that is short, in any directory: systems allow 100 bytes."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        here = Path(f"/proc/self/fd/{descriptor}")
        yield str((here if here.exists() else run_dir) / name)
    finally:
        os.close(descriptor)


def _read(connection: socket.socket) -> Plain:
    """Return a line with an object of JSON; raise `OSError` otherwise."""
    data = bytearray()
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > _MOST_BYTES:
            raise ConnectionError("the other side sent no whole line")
        data += part
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"the other side sent no JSON: {error}") from error
    if not isinstance(message, dict):
        raise ConnectionError("the other side sent no object")
    return message
