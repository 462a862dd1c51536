"""Hosts on the nodes of a Ray cluster: the learner's side.

A separate process speaks to Ray, `ray_driver.py`, so that this one needs no Ray and lives on
without it. It only starts hosts: all else goes between hosts and learner directly. Does not know
what hosts do.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from queue import Empty, Queue
from typing import Annotated, Any, Literal

from asyncrl.core.declared import Positive, Within, check_declared
from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.fleet.local import pickled

_log = logging.getLogger(__name__)

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from asyncrl.fleet.ray_driver import main; main()"
)
_LOGGED = re.compile(r"^\[[^]]*\] \S+: ")
"""Time, process and file before what Ray logs."""

_CONNECT_S = 60.0
"""Seconds for the process to load Ray and to connect, beyond those for placing hosts."""

_END_S, _STOP_S = 20.0, 1.0
"""Seconds for the process to end: with hosts, and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Hosts on a Ray cluster, with `launcher=ray`."""

    address: str = "auto"
    """`HOST:PORT` of the cluster's head. `auto` takes RAY_ADDRESS, or the cluster that this machine
    is a node of. No cluster is started."""

    hosts: Annotated[int, Within("[0, inf)", zero="one per node")] = 0
    """Number of hosts, which share the actors equally. 0: one per node of the cluster."""

    cpus_per_actor: Positive = 1.0
    """Logical CPUs of Ray that a host reserves for each of its actors."""

    placement: Literal["spread", "pack"] = "spread"
    """Whether Ray spreads hosts over many nodes or packs them into few, as far as it can."""

    timeout_s: Positive = 30.0
    """Seconds for Ray to find places for all hosts. Where a cluster grows on demand, allow the time
    that a new node needs."""

    def __post_init__(self) -> None:
        check_declared(self, "ray")


class RayHosts:
    """Places for hosts on a Ray cluster, and later the hosts there.

    Raises `ConfigError` if Ray is missing, out of reach, or too small. Nothing else has started
    then.
    """

    def __init__(self, config: RayConfig, *, actors: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the learner, which ends the hosts
        )
        self._messages: Queue[Mapping[str, Any]] = Queue()
        self._on_message: Callable[[Mapping[str, Any]], object] = lambda _: None
        self._goes_on = threading.Event()
        self._ends = self._serves = self._failed = False
        self._reader = threading.Thread(target=self._read, name="asyncrl-ray", daemon=True)
        self._reader.start()
        try:
            self._say({**asdict(config), "actors": actors})
            self.address: str = self._placed(_CONNECT_S + config.timeout_s)
        except BaseException:
            self.close()
            raise

    def serve(
        self,
        run: Callable[[int], object],
        *,
        on_lost: Callable[[str, str], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Start the hosts. May be called once.

        Args:
            run: What a host runs, with the number of its actors; pickled by cloudpickle.
            on_lost: Called with the name of a host that has ended, and why; in another thread.
            on_failed: Called with why no host can be started any more; in another thread.
        """

        def on_message(message: Mapping[str, Any]) -> None:
            match message:
                case {"ended": str(name), "why": str(why)}:
                    _log.warning("host %s on Ray has ended: %s; it starts again", name, why)
                    on_lost(name, why)
                case {"late": [*names]}:
                    _log.warning(
                        "hosts on Ray have not ended in time, and were killed: %s. One that Ray "
                        "did not kill ends itself, after hosts.learner_timeout_s",
                        ", ".join(map(str, names)),
                    )
                case {"error": str(why)}:
                    self._failed = True
                    on_failed(ConfigError(why))
                case _ if not (self._ends or self._failed):
                    on_failed(TransportError(self._why_gone()))

        self._on_message, self._serves = on_message, True
        self._goes_on.set()
        body = pickled((sys.path, pickled(run)))
        self._say({"serve": base64.b64encode(body).decode()})

    def close(self) -> None:
        """End the hosts that still run, give their places back; may be called again."""
        if self._ends:
            return
        self._ends = True
        self._goes_on.set()
        self._say({"end": True})
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_END_S if self._serves else _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()

    def _placed(self, timeout_s: float) -> str:
        """Return this machine's address in the cluster, when all hosts have places."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except Empty:
            raise ConfigError(
                f"Ray has not answered in {timeout_s:g} s; `ray status` shows how it is"
            ) from None
        match message:
            case {"address": str(address)}:
                return address
            case {"error": str(why)} if "InvalidAuthToken" not in self._logged():
                raise ConfigError(why)
            case {"error": _}:
                raise ConfigError(
                    "the Ray cluster refuses the authentication token of this process, or its "
                    "lack: give it that of the cluster in ~/.ray/auth_token or RAY_AUTH_TOKEN, "
                    "with RAY_AUTH_MODE=token or without RAY_AUTH_MODE"
                )
        raise ConfigError(self._why_gone())

    def _why_gone(self) -> str:
        """Return how the process that speaks to Ray has ended."""
        lines = [line for line in self._logged().splitlines() if line]
        return (
            "the connection to the Ray cluster is lost: the process that keeps it has ended"
            + (f" ({_LOGGED.sub('', lines[-1].strip()):.300})" if lines else "")
            + "; resume the run when the cluster is there"
        )

    def _logged(self) -> str:
        """Return what the process that speaks to Ray has written to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def _say(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError, ValueError):  # what it said before it ended is read by the thread
            self._process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _read(self) -> None:
        """Pass messages on until the process has ended; then an empty one.

        The first is for `_placed`; all others are kept in the pipe until `serve` or `close`.
        """
        lines = self._process.stdout
        assert lines  # noqa: S101  # a pipe
        self._messages.put(json.loads(lines.readline() or "{}"))
        self._goes_on.wait()
        for line in lines:
            self._on_message(json.loads(line))
        self._on_message({})
