"""An environment's examination in a process of its own, which it may take down or block."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from asyncrl.core.settings import from_plain, to_plain
from asyncrl.envs._findings import Finding
from asyncrl.envs.doctor import diagnose
from asyncrl.envs.gym import EnvConfig
from asyncrl.supervision.local import pickled

_SLICE_S = 0.2
"""Between two looks whether the process still lives."""


def examine(
    config: EnvConfig, *, seconds: float, seed: int, patience_s: float
) -> Iterator[Finding]:
    """Yield what a process of its own finds, and how that process ended if not well.

    It is ended if nothing comes for `patience_s` longer than it plays.
    """
    what = json.dumps({"config": to_plain(config), "seconds": seconds, "seed": seed})
    doing, quiet_s = "start", seconds + patience_s
    reader, writer = os.pipe()
    child = _start(what, writer)
    os.close(writer)  # so that the child's end is the only one, and its exit an end of file
    try:
        for message in _messages(child, reader, quiet_s):
            doing = message.pop("doing", doing)
            if message:
                yield Finding(**message)
        code = child.wait()
        if code:
            yield _died(doing, code)
    except TimeoutError:
        yield Finding(
            level="fail",
            check=doing,
            seen=f"nothing has come for {quiet_s:g} s",
            advice="The environment hangs there: look for a wait without an end.",
        )
    finally:
        _kill(child)
        os.close(reader)


def main(arguments: Sequence[str]) -> None:
    """Be the process that the environment lives in."""
    what, fd = json.loads(arguments[0]), int(arguments[1])
    os.set_inheritable(fd, False)

    def send(message: Mapping[str, Any]) -> None:
        os.write(fd, (json.dumps(message) + "\n").encode())

    for finding in diagnose(
        from_plain(EnvConfig, what["config"]),
        seconds=what["seconds"],
        seed=what["seed"],
        pickled=pickled,
        tell=lambda doing: send({"doing": doing}),
    ):
        send(dataclasses.asdict(finding))


def _start(what: str, writer: int) -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100
    return subprocess.Popen(  # noqa: S603  # our own interpreter and our own words
        [sys.executable, "-P", "-m", __name__, what, str(writer)],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what an environment prints is no part of the report
        pass_fds=[writer],
        env={**os.environ, "PYTHONPATH": search_path},
        start_new_session=True,  # so that it can be ended with all that it has started
    )


def _messages(
    child: subprocess.Popen[bytes], reader: int, quiet_s: float
) -> Iterator[dict[str, Any]]:
    """Yield what the child sends until it is gone; raise `TimeoutError` if it goes quiet."""
    data, until = b"", time.monotonic() + quiet_s
    news = select.poll()  # `select` takes no descriptor above 1023
    news.register(reader, select.POLLIN)
    while True:
        # Processes of the environment's may hold the other end open for longer than the child.
        gone = child.poll() is not None
        if news.poll(0 if gone else 1000 * _SLICE_S):
            more = os.read(reader, 65536)
            if not more:
                return
            *lines, data = (data + more).split(b"\n")
            yield from map(json.loads, lines)
            until = time.monotonic() + quiet_s
        elif gone:
            return
        elif time.monotonic() > until:
            raise TimeoutError


def _died(doing: str, code: int) -> Finding:
    how = f"exited with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
    return Finding(
        level="fail",
        check=doing,
        seen=f"the environment's process {how} here",
        advice="Actors would die of it again and again: look into the environment's native code, "
        "or for calls that end the process.",
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
