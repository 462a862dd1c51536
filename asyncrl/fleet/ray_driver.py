"""The process that speaks to a Ray cluster for a learner: it places hosts there and starts them.

One Ray actor per host, which runs what the learner has pickled. A host that was lost is started
again, on another node if its node is gone. Nothing here starts a cluster. This is a process apart,
since Ray replaces signal handlers, prints into the terminal, and ends the process that has lost its
cluster. It speaks with the learner in lines of JSON, and ends with it. `ray.py` is the learner's
side. Does not know what hosts do.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from asyncrl.core.errors import ConfigError, describe_error
from asyncrl.fleet.process_name import set_title

Ray = Any
"""The module `ray`, which has no types that mypy could check here."""

Say = Callable[..., None]

_CONNECT_S = 10.0
_LOOK_S = 0.2
_END_S = 5.0
"""Seconds for hosts to end after the run, before they are killed."""

_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.5, 15.0
_STEADY_S = 60.0
"""A host that ran for this time has not failed in a row."""

_NAMELESS = "without a name"
"""A host that has not reported its name yet."""

_CAUSE = re.compile(r"[\w.]+(Error|Exception): ")
_MOST_FAILURES = 3
"""Failures in a row of every host after which the run cannot go on."""


class HostActor:
    """What Ray runs on a node: one host, in the main thread of the process."""

    def name(self) -> str:
        """Return the host's name: its machine and process."""
        return f"{socket.gethostname()}/{os.getpid()}"

    def serve(self, body: bytes, room: int) -> str:
        """Run the host until its run has ended; return why it failed, or an empty string.

        What it raises is put into words here, since Ray would pickle it. The process ends with the
        host if its node is lost: Ray lets it idle for as long as the dead raylet is a zombie.
        """
        raylet, why = os.getppid(), ""
        try:
            paths, run = cloudpickle.loads(body)
            sys.path += [path for path in paths if path not in sys.path]
            cloudpickle.loads(run)(room)
        except Exception as error:
            why = describe_error(error)
        if os.getppid() != raylet:
            os._exit(1)
        return why


@dataclass(slots=True)
class _Placed:
    room: int
    actor: Any = None
    """Ray ends an actor whose last handle is dropped."""

    name_ref: Any = None
    ended_ref: Any = None
    name: str = ""
    failures: int = 0
    started_at: float = 0.0
    starts_at: float = 0.0


class Driver:
    """Places the hosts of one run, starts them, and ends them.

    Args:
        ray: The module, or what a test puts in its place.
        order: What the learner wants, from `RayConfig`, with the number of its actors.
        say: Sends the learner a message.
        clock: Measures backoffs.
    """

    def __init__(
        self, ray: Ray, order: Mapping[str, Any], say: Say, *, clock: Callable[[], float]
    ) -> None:
        self._ray = ray
        self._order = order
        self._say = say
        self._clock = clock
        self._group: Any = None
        self._node = ""
        self._hosts: list[_Placed] = []
        self._body = b""

    def place(self) -> str:
        """Connect and reserve a place for each host; return this machine's address in the cluster.

        Raises `ConfigError` if the cluster is out of reach or too small.
        """
        address = checked_address(self._ray, self._order["address"])
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"cannot connect to Ray at {address}: {_in_a_line(error)}. The learner must run "
                "on a node of the cluster: run `ray start --address=HEAD` there, or start the "
                "learner by `ray job submit`"
            ) from error
        self._node = self._ray.get_runtime_context().get_node_id()
        self._hosts = [_Placed(room) for room in self._rooms()]
        bundles = [{"CPU": self._cpus(host)} for host in self._hosts]
        strategy = self._order["placement"].upper()
        self._group = self._ray.util.placement_group(bundles, strategy=strategy)
        if not self._group.wait(self._order["timeout_s"]):
            raise ConfigError(self._what_is_lacking(bundles))
        return str(self._ray.util.get_node_ip_address())

    def serve(self, body: bytes) -> None:
        """Start all hosts."""
        self._body = body
        for index in range(len(self._hosts)):
            self._start(index)

    def look(self, timeout_s: float) -> None:
        """Report and start again the hosts that have ended."""
        waits = [one.ended_ref for one in self._hosts if one.ended_ref is not None]
        waits += [one.name_ref for one in self._hosts if one.name_ref is not None]
        ready = set(self._ray.wait(waits, timeout=timeout_s)[0]) if waits else set()
        for index, host in enumerate(self._hosts):
            if host.name_ref in ready:
                name, lost = self._result(host.name_ref)
                host.name, host.name_ref = "" if lost else name, None
            if host.ended_ref in ready:
                self._on_end(host, *self._result(host.ended_ref))
            if host.actor is None and host.starts_at <= self._clock():
                self._start(index)

    def end(self) -> None:
        """Wait until all hosts have ended, kill those that do not, and leave the cluster."""
        waits = [one.ended_ref for one in self._hosts if one.ended_ref is not None]
        late = self._ray.wait(waits, num_returns=len(waits), timeout=_END_S)[1] if waits else []
        names = [one.name or _NAMELESS for one in self._hosts if one.ended_ref in late]
        if names:
            self._say(late=names)
        self.kill()

    def kill(self) -> None:
        """End all hosts at once, and leave the cluster."""
        for host in self._hosts:
            if host.actor is not None:
                with suppress(Exception):
                    self._ray.kill(host.actor)
        with suppress(Exception):
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
            self._ray.shutdown()

    def _rooms(self) -> list[int]:
        """Return the number of actors of each host: equal shares."""
        actors = self._order["actors"]
        hosts = self._order["hosts"] or len(self._nodes()) or 1
        hosts = min(hosts, actors)
        return [actors // hosts + (index < actors % hosts) for index in range(hosts)]

    def _nodes(self) -> list[float]:
        """Return the logical CPUs of each node that has room for an actor."""
        alive = [node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]]
        return [cpus for cpus in alive if cpus >= min(1.0, self._order["cpus_per_actor"])]

    def _cpus(self, host: _Placed) -> float:
        cpus = float(host.room * self._order["cpus_per_actor"])
        return cpus if cpus < 1 else math.ceil(cpus)

    def _what_is_lacking(self, bundles: list[dict[str, float]]) -> str:
        needed = " + ".join(f"{bundle['CPU']:g}" for bundle in bundles)
        there = sorted(
            (node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]),
            reverse=True,
        )
        free = self._ray.available_resources().get("CPU", 0.0)
        nodes = ", ".join(f"{cpus:g}" for cpus in there)
        return (
            f"Ray has not placed {len(bundles)} hosts with {needed} CPUs in "
            f"{self._order['timeout_s']:g} s: its nodes have {nodes} CPUs, of which {free:g} are "
            "free. Lower actors or ray.cpus_per_actor, change ray.hosts, add nodes, or raise "
            "ray.timeout_s if nodes are still being added"
        )

    def _start(self, index: int) -> None:
        if any(one["NodeID"] == self._node and not one["Alive"] for one in self._ray.nodes()):
            raise ConfigError(  # Ray ends what this process has started, and starts nothing more
                "Ray has lost the node that the learner runs on: its raylet has ended. Resume the "
                "run when `ray status` shows the node again"
            )
        host = self._hosts[index]
        strategies = self._ray.util.scheduling_strategies
        options = {
            "num_cpus": self._cpus(host),
            "max_restarts": 0,
            "max_concurrency": 1,  # more, and methods do not run in the main thread
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=index
            ),
        }
        host.actor = self._ray.remote(HostActor).options(**options).remote()
        host.name, host.name_ref = "", host.actor.name.remote()
        # An argument of a method goes from process to process; those of a constructor are kept by
        # the head.
        host.ended_ref = host.actor.serve.remote(self._body, host.room)
        host.started_at = self._clock()

    def _result(self, ref: Any) -> tuple[str, bool]:  # noqa: ANN401
        """Return what a method has returned, or how it was lost, and whether it was lost."""
        try:
            return str(self._ray.get(ref)), False
        except Exception as error:  # RayError: what has no base class in common was seen, too
            return _in_a_line(error), True

    def _on_end(self, host: _Placed, why: str, lost: bool) -> None:
        with suppress(Exception):
            self._ray.kill(host.actor)
        if why:
            steady = self._clock() - host.started_at > _STEADY_S
            host.failures = 1 if steady else host.failures + 1
            self._say(ended=host.name or _NAMELESS, why=why if lost else f"failed: {why}")
            backoff_s = min(_FIRST_BACKOFF_S * 2 ** (host.failures - 1), _LAST_BACKOFF_S)
            host.starts_at = self._clock() + backoff_s
        else:  # its run has ended
            host.failures, host.starts_at = 0, math.inf
        host.actor = host.name_ref = host.ended_ref = None
        if all(one.actor is None and one.failures >= _MOST_FAILURES for one in self._hosts):
            raise ConfigError(
                f"each of the {len(self._hosts)} hosts on Ray has failed {_MOST_FAILURES} times in "
                f"a row, at last: {why}"
            )


def checked_address(ray: Ray, address: str) -> str:
    """Return the cluster's address as HOST:PORT; raise `ConfigError` if nothing listens there.

    Ray itself would try for more than a minute, and then end the process.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address.startswith("ray://"):
        raise ConfigError(
            f"ray.address is {address!r}, Ray's client, through which hosts cannot reach the "
            "learner: run the learner on a node of the cluster, with HOST:PORT or auto, or start "
            "it there by `ray job submit`"
        )
    if address == "auto":
        address = _own_cluster(ray)
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(
            f"ray.address must be auto or HOST:PORT, got {address!r}; a cluster is never started "
            "here: run `ray start --head`"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); `ray status` shows whether it runs"
        ) from error
    return address


def _own_cluster(ray: Ray) -> str:
    """Return the address of the cluster that this machine is a node of."""
    try:
        found = ray._private.services.canonicalize_bootstrap_address("auto")  # noqa: SLF001
    except ConnectionError:
        found = None
    if not found:
        raise ConfigError(
            "no Ray cluster was found on this machine: give ray.address as HOST:PORT of its head, "
            "or make this machine a node by `ray start --address=HOST:PORT`"
        )
    return str(found)


def _in_a_line(error: BaseException) -> str:
    """Return what Ray raised: its cause if it names one at the end, or its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if not _CAUSE.match(lines[-1]):
        return f"{type(error).__name__}: {lines[0].rstrip('.')}"
    missing = "No module named" in lines[-1]
    return lines[-1] + (" (install it on every node of the cluster)" if missing else "")


def in_brackets(address: str) -> str:
    """Return an address as endpoints contain it."""
    with suppress(ValueError):
        if ipaddress.ip_address(address).version == 6:
            return f"[{address}]"
    return address


def main() -> None:
    """Serve the learner, whose messages arrive at standard input, until it says so or is gone."""
    set_title("asyncrl ray")
    lines = Lines()
    try:
        order = lines.wait()
        driver = Driver(import_ray(), order, lines.say, clock=time.monotonic)
        _run(driver, lines)
    except ConfigError as error:
        lines.say(error=str(error))
    os._exit(0)  # whatever threads Ray has


def import_ray() -> Ray:
    """Return the module; raise `ConfigError` if it is not installed."""
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if "RAY_AUTH_TOKEN" in os.environ or token.exists():
        # As `ray start` does where there is a token; a cluster without one ignores it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray  # type: ignore[import-not-found]  # noqa: PLC0415  # an optional package
        import ray._private.services  # type: ignore[import-not-found]  # noqa: PLC0415
        import ray.util.scheduling_strategies  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"launcher=ray needs Ray ({error}): pip install 'asyncrl[ray]'"
        ) from error
    return ray


def _run(driver: Driver, lines: Lines) -> None:
    try:
        lines.say(address=in_brackets(driver.place()))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # sent to all processes of a job: it ends later
        message: Mapping[str, Any] | None = lines.wait()
        if body := (message or {}).get("serve"):
            driver.serve(base64.b64decode(body))
            while (message := lines.read()) is None:
                driver.look(_LOOK_S)
        if message and "end" in message:
            driver.end()
    finally:
        driver.kill()


class Lines:
    """Messages to and from the learner, in lines of JSON."""

    def __init__(self) -> None:
        self._learner = os.getppid()
        # What Ray prints to standard output must not come in between.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        os.dup2(2, 1)
        self._unread = b""

    def say(self, **message: Any) -> None:  # noqa: ANN401
        """Send a message; ignore a learner that is gone."""
        with suppress(OSError):
            self._out.write(json.dumps(message) + "\n")

    def wait(self) -> Mapping[str, Any]:
        """Return the next message."""
        while (message := self.read(_LOOK_S)) is None:
            pass
        return message

    def read(self, timeout_s: float = 0.0) -> Mapping[str, Any] | None:
        """Return a message, or None if none has arrived; empty if the learner is gone."""
        while b"\n" not in self._unread:
            if os.getppid() != self._learner:
                return {}
            if not select.select([0], [], [], timeout_s)[0]:
                return None
            if not (data := os.read(0, 1 << 20)):
                return {}
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: Mapping[str, Any] = json.loads(line)
        return message
