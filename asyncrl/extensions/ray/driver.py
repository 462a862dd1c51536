"""The process that speaks to a Ray cluster for a learner: it starts hosts there.

A host is a Ray task, which runs what the learner has packed. Ray places it, starts it again if it
is lost, elsewhere if its node is, and ends it with this process, which ends with the learner.
`hosts.py` is the learner's side.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from asyncrl.core.errors import ConfigError, Refused, TransportError, describe_error
from asyncrl.fleet.config import RayConfig
from asyncrl.fleet.local import unpacked
from asyncrl.fleet.process_name import set_title

FAILED = 3
"""Exit code after a failure whose cause is the last line of standard error."""

_CONNECT_S, _LOOK_S = 10.0, 1.0
_END_S = 5.0
"""Seconds for hosts to end after the run, before they are killed."""

_MOST_LOSSES = 100
"""How often Ray starts a host again that was lost, or that has lost its learner."""


def main(actors: int, settings: Mapping[str, Any]) -> None:
    """Serve the learner until it closes standard input, as it does when it ends."""
    set_title("asyncrl ray")
    answers = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    try:
        _drive(answers, actors, RayConfig(**settings))
    except BaseException as error:
        cause = getattr(error, "cause", None) or error  # what a host has raised
        os.write(2, f"\n{describe_error(cause).removeprefix('ConfigError: ')}\n".encode())
        os._exit(FAILED)
    os._exit(0)  # whatever threads Ray has


def _drive(answers: int, actors: int, config: RayConfig) -> None:
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415  # in this process only

    address = os.environ.get("RAY_ADDRESS", "auto") if config.address == "auto" else config.address
    if address != "auto":  # Ray itself would try for minutes
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    rooms = rooms_of(actors, config, ray.nodes())
    places = reserved(ray, [math.ceil(room * config.cpus_per_actor) for room in rooms], config)
    here = ray.util.get_node_ip_address()
    os.write(answers, (f"[{here}]\n" if ":" in here else f"{here}\n").encode())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # sent to all processes of a job: it ends later
    body = bytes.fromhex(input())
    hosts = [
        ray.remote(serve).options(**place).remote(body, room)
        for place, room in zip(places, rooms, strict=True)
    ]
    while not select.select([0], [], [], _LOOK_S)[0]:
        ray.get(ray.wait(hosts, num_returns=len(hosts), timeout=0)[0])  # raises what one has raised
    ray.wait(hosts, num_returns=len(hosts), timeout=_END_S)
    ray.shutdown()


def rooms_of(actors: int, config: RayConfig, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of actors of each host: equal shares."""
    able = [one for one in nodes if one["Alive"] and one["Resources"].get("CPU", 0) >= 1]
    hosts = min(config.hosts or len(able) or 1, actors)
    return [actors // hosts + (index < actors % hosts) for index in range(hosts)]


def reserved(ray: ModuleType, cpus: Sequence[int], config: RayConfig) -> list[dict[str, Any]]:
    """Reserve a place for each host; return the options of the tasks there."""
    bundles = [{"CPU": each} for each in cpus]
    group = ray.util.placement_group(bundles, strategy=config.placement.upper())
    if not group.wait(config.timeout_s):
        there = [f"{one['Resources'].get('CPU', 0):g}" for one in ray.nodes() if one["Alive"]]
        raise ConfigError(
            f"Ray has not placed {len(cpus)} hosts with {' + '.join(map(str, cpus))} CPUs in "
            f"{config.timeout_s:g} s: its nodes have {', '.join(there)} CPUs, of which "
            f"{ray.available_resources().get('CPU', 0):g} are free. Lower actors or "
            "ray.cpus_per_actor, change ray.hosts, add nodes, or raise ray.timeout_s if nodes are "
            "still being added"
        )
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    return [
        {
            "name": "asyncrl host",
            "num_cpus": each,
            "max_retries": _MOST_LOSSES,
            "retry_exceptions": [OSError, TransportError],
            "scheduling_strategy": strategy(group, placement_group_bundle_index=index),
        }
        for index, each in enumerate(cpus)
    ]


def serve(body: bytes, room: int) -> None:
    """Be a host: what Ray runs on a node."""
    try:
        unpacked(body)(actors=room)
    except Refused as error:  # a `TransportError`, but trying again would not help
        raise ConfigError(str(error)) from None
