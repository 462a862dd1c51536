"""How much CPU time does the dashboard of a run take while a page is open?

    python -m benchmarks.speed.dashboard [--seconds 60] [--agent dqn] [--env CartPole-v1]

Runs `asyncrl train ... --dashboard`, and a program that follows the page as a browser does. Counts
the CPU time of the threads that serve it, with the first page, and without that of the program.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.cli import train
from asyncrl.cli.main import main as run_asyncrl
from asyncrl.cli.output import show
from asyncrl.metrics.machine import machine
from asyncrl.report.live import LiveReport

_FOLLOW = """
import sys, urllib.request
url = sys.argv[1]
urllib.request.urlopen(url).read()
events = urllib.request.urlopen(url.replace("/?", "/events?"))
print(sum(line.startswith(b"data: {") for line in events))
"""

_END_S = 60.0
"""Timeout for the threads and the client to end."""


class _Measured(LiveReport):
    """Prints at its end what its threads took. A client follows it from the beginning."""

    def __init__(self, run_dir: Path, port: int = 0) -> None:
        super().__init__(run_dir, port)
        self._spent_s: list[float] = []
        self._client: subprocess.Popen[str] | None = None
        server: Any = self._server
        server.process_request_thread = self._timed(server.process_request_thread)
        thread: Any = self._thread
        thread.run = self._timed(thread.run)

    def _timed(self, work: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: object) -> None:
            try:
                work(*args)
            finally:
                self._spent_s.append(time.thread_time())

        return timed

    def serve(self) -> None:
        super().serve()
        self._began_s = time.monotonic()
        command = [sys.executable, "-c", _FOLLOW, self.url]
        self._client = subprocess.Popen(  # noqa: S603  # a program of this file
            command, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        if self._client is None:  # the run has failed before
            super().close()
            return
        wall_s = time.monotonic() - self._began_s
        super().close()
        self._thread.join(_END_S)
        try:
            updates, _ = self._client.communicate(timeout=_END_S)
        finally:
            self._client.kill()
            self._client.wait(_END_S)
        found, spent_s = machine(), sum(self._spent_s)
        cores = found["usable_cores"]
        show(found["processor"])
        show(
            f"{spent_s:.2f} s of CPU time in {wall_s:.0f} s on {cores:g} cores: "
            f"{spent_s / wall_s / cores:.2%} of them, for {updates.strip()} updates of the page"
        )


def main() -> None:
    """Run once, and print the share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="CartPole-v1")
    given = parser.parse_args()
    train.LiveReport = _Measured  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--env", given.env, "--max-seconds", str(given.seconds), "--dashboard", "--quiet"]
        code = run_asyncrl(["train", given.agent, *flags, "--run-dir", f"{directory}/run"])
    sys.exit(code)


if __name__ == "__main__":
    main()
