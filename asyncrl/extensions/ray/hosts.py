"""Hosts on the nodes of a Ray cluster: the learner's side. Attaches where hosts are started.

A separate process speaks to Ray, `driver.py`, since Ray replaces signal handlers, prints into the
terminal, and ends the process that has lost its cluster. It only starts hosts: all else goes
between hosts and learner directly.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec

from asyncrl.core.errors import AsyncRLError, ConfigError, TransportError
from asyncrl.extensions.ray.driver import FAILED
from asyncrl.fleet.local import packed
from asyncrl.run.run_config import RunConfig

_BOOT = (
    "import json, sys; sys.path[:], *order = json.loads(sys.argv[1]); "
    "from asyncrl.extensions.ray.driver import main; main(*order)"
)
_END_S = 20.0


def on_ray(config: RunConfig) -> RayHosts:
    """Have Ray start the hosts of a run, with the settings in `ray` of its config.

        train_async(..., start_hosts=on_ray)

    Raises `ConfigError` if Ray is missing, out of reach, or too small. Nothing has started then.
    """
    return RayHosts(config)


class RayHosts:
    """Places for hosts on a Ray cluster, and later the hosts there."""

    def __init__(self, config: RunConfig) -> None:
        if find_spec("ray") is None:
            raise ConfigError("launcher=ray needs Ray: pip install 'asyncrl[ray]'")
        order = json.dumps([sys.path, config.actors, asdict(config.ray)])
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _BOOT, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the learner, which ends the hosts
        )
        self._ends = False
        with self._process.stdout as answers:  # type: ignore[union-attr]
            self.address: str = answers.readline().strip()
        if not self.address:
            failure = self._failure()
            self.close()
            raise failure

    def start(self, run: Callable[..., object], fail: Callable[[Exception], object]) -> None:
        """Start the hosts, each of which runs this with its number of `actors`.

        `fail` is called in another thread, once, if they cannot run any more.
        """
        threading.Thread(target=self._watch, args=(fail,), name="asyncrl-ray", daemon=True).start()
        with suppress(OSError):  # it has ended, which `_watch` sees
            self._process.stdin.write(f"{packed(run).hex()}\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def close(self) -> None:
        """End the hosts that still run, give their places back; may be called again."""
        self._ends = True
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()

    def _watch(self, fail: Callable[[Exception], object]) -> None:
        failure = self._failure()
        if not self._ends:
            fail(failure)

    def _failure(self) -> AsyncRLError:
        """Wait for the end of the process; return the last line that it, or Ray, has written."""
        with self._process.stderr as lines:  # type: ignore[union-attr]
            last = deque(filter(str.strip, lines), maxlen=1)
        why = "".join(last).strip()
        if self._process.wait() == FAILED:
            return ConfigError(f"hosts on Ray: {why}")
        return TransportError(
            f"the connection to the Ray cluster is lost: the process that keeps it has ended "
            f"({why:.300}); resume the run when the cluster is there"
        )
