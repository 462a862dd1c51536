"""The command line as people use it: in a terminal, where Ctrl-C reaches the whole group."""

from __future__ import annotations

import os
import pty
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.chaos.learner import MARK, marked, wait_until
from benchmarks.common import ASYNCRL, ROOT

_CTRL_C = b"\x03"


class Terminal:
    """One command line in a terminal of its own; whatever happens in the block, it has ended."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        """Start `asyncrl` with these arguments in a directory."""
        self.mark = secrets.token_hex(8)
        self.code: int | None = None
        self._said = bytearray()
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        self.pid, self._end = pty.fork()
        if not self.pid:
            os.chdir(directory)
            os.execve(ASYNCRL[0], [*ASYNCRL, *arguments], environment)  # noqa: S606  # our own module
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def press_ctrl_c(self) -> None:
        """Send SIGINT as a terminal does: to every process in its foreground."""
        os.write(self._end, _CTRL_C)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command's own process."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has; its exit code is then in `code`, as shells tell it."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status)
            self.code = (code if code >= 0 else 128 - code) if pid else None
        return self.code is not None

    def wait(self, timeout_s: float) -> float:
        """Wait for its end; return how long that took."""
        began = time.monotonic()
        wait_until(lambda: self.has_ended, timeout_s, "the command to end")
        took_s = time.monotonic() - began
        self._reader.join(timeout_s)
        return took_s

    @property
    def said(self) -> str:
        """Everything it has written so far."""
        return self._said.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in marked(self.mark):
            process.kill()
        if not self.has_ended:
            os.waitpid(self.pid, 0)
        os.close(self._end)

    def _read(self) -> None:
        with suppress(OSError):  # nobody holds the other end any more
            while data := os.read(self._end, 4096):
                self._said += data
