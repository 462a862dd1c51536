"""A browser that tests look through, by the protocol that it speaks over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.support.helpers import wait_until

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
_WAIT_S = 60.0


class Tab:
    """One page."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        """What the page wrote to its console, and its uncaught errors."""

    def open(self, url: str) -> None:
        """Go there, and begin to listen."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        answer = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for part in ("Runtime", "Log", "Page"):
            self.send(f"{part}.enable")
        self.send("Page.navigate", url=url)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while (said := self._next()).get("id") != self._number:
            pass
        if "error" in said:
            raise ValueError(f"{method}: {said['error']}")
        found: dict[str, Any] = said["result"]
        return found

    def _next(self) -> dict[str, Any]:
        data = b""
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has ended")
            data += byte
        said: dict[str, Any] = json.loads(data)
        complaints = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        if said.get("method") in complaints:
            self.complaints.append(json.dumps(said["params"]))
        return said

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise ValueError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        wait_until(lambda: self.value(expression), _WAIT_S, expression)

    def picture(self, path: Path, width: int, height: int) -> None:
        """Write what a screen of this size shows."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """Start a browser, and end it with all its processes."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    # It reads from descriptor 3 and writes to 4; those of the pipes may be the same numbers.
    script = f'exec {{a}}<&{their_in} {{b}}>&{their_out}; exec 3<&$a 4>&$b; exec "$@"'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    flags += ["--no-first-run", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", str(PROGRAM), *flags],
        pass_fds=(their_in, their_out),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        with os.fdopen(our_out, "wb") as commands, os.fdopen(our_in, "rb") as answers:
            tab = Tab(commands, answers)
            yield tab
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
