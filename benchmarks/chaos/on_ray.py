"""Hosts on a Ray cluster that are killed, or lose their node, and a cluster that loses its head.

Its four nodes are processes of this machine, and Ray looks after them each half second; with Ray's
own intervals it takes 13 s until a lost node is known and a host can start elsewhere. Needs Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import psutil

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import AsyncRLError
from asyncrl.extensions.ray.hosts import on_ray
from asyncrl.fleet.config import HostsConfig, RayConfig
from benchmarks.chaos.finding import Finding, Size, not_run
from benchmarks.chaos.hosts import is_running
from benchmarks.chaos.stage import Stage
from benchmarks.machines import MARK, marked
from benchmarks.speed.hosts import cluster

_TARGET = 30
_ACTORS = 3
_TIMEOUT_S = 2.0
_ACTOR_S, _GONE_S, _BACK_S = 0.2, 1.0, 15.0
_CALM_S = 0.5
_DEADLINE_S = 90.0
_RAY = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


@dataclass(slots=True)
class Fault:
    """What was seen of one fault: seconds after it."""

    gone_s: float = 0.0
    """Until the actors were gone."""

    known_s: float = 0.0
    back_s: float = 0.0
    """Until all actors made steps again."""


@dataclass(slots=True)
class Faults:
    """A script: an actor is killed, then a host, then the raylet of a node."""

    seen: dict[str, Fault] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Let one fault follow the other."""
        yield from _until_all_live(stage)
        victim = stage.incarnations.living()[0]
        yield from self._kill(stage, "an actor", psutil.Process(victim.pid), [], "SIGKILL")
        name, host = hosts_of(stage)[-1]
        yield from self._kill(stage, "a host", host, host.children(recursive=True), name)
        first = min(_raylets(), key=psutil.Process.create_time)  # that of the head
        name, host, raylet = next(
            (name, host, raylet)
            for name, host in hosts_of(stage)
            if (raylet := _raylet_of(host)) != first
        )
        yield from self._kill(stage, "a node", raylet, [host, *host.children(recursive=True)], name)
        yield from stage.for_s(_CALM_S)

    def _kill(
        self,
        stage: Stage,
        what: str,
        victim: psutil.Process,
        family: list[psutil.Process],
        notice: str,
    ) -> Iterator[None]:
        """Kill a process, and learn on until all is as before."""
        fault = self.seen[what] = Fault()
        at = time.monotonic()
        victim.kill()
        yield from stage.until(
            lambda: not any(map(is_running, [victim, *family])), _DEADLINE_S, "actors to end"
        )
        fault.gone_s = time.monotonic() - at

        def known() -> list[float]:
            return [at for at, text in stage.notices.since(at, notice) if "actor" in text]

        yield from stage.until(known, _DEADLINE_S, f"{what} to be missed")
        fault.known_s = known()[0] - at
        yield from _until_all_live(stage)
        fault.back_s = time.monotonic() - at


def lose_head(stage: Stage) -> Iterator[None]:
    """Kill the process that keeps the cluster's state, and learn on until the run fails."""
    yield from _until_all_live(stage)
    for one in _cluster("gcs_server"):
        one.kill()
    yield from stage.until(lambda: False, _DEADLINE_S, "the run to fail")


def hosts_of(stage: Stage) -> list[tuple[str, psutil.Process]]:
    """Return the names and processes of the hosts that are there."""
    numbers = stage.trainer.source.hosts()
    names = [name for name, host in numbers.items() if not host["lost"]]
    return [(name, psutil.Process(int(name.rpartition("/")[2]))) for name in names]


def _until_all_live(stage: Stage) -> Iterator[None]:
    yield from stage.until(
        lambda: sum(one.alive for one in stage.incarnations.living()) == _ACTORS,
        _DEADLINE_S,
        f"{_ACTORS} actors",
    )


def _cluster(name: str) -> list[psutil.Process]:
    """Return the cluster's processes of this name."""
    return [one for one in marked(os.environ[MARK]) if one.name() == name]


def _raylets() -> list[psutil.Process]:
    return _cluster("raylet")


def _raylet_of(host: psutil.Process) -> psutil.Process:
    return next(one for one in host.parents() if one.name() == "raylet")


def measure(size: Size, directory: Path) -> list[Finding]:
    """Do all that, and return the findings."""
    del size
    if find_spec("ray") is None:
        reason = "Ray is not installed: pip install 'asyncrl[ray]'"
        return [not_run(_TARGET, "hosts on Ray", "the run continues", reason)]
    os.environ |= _RAY
    faults = Faults()
    with cluster() as address:
        stage = _stage(directory / "faults", address)
        stage.play(faults, start_hosts=on_ray)
        return [
            *_in_time(faults),
            stage.balance(_TARGET, "hosts on Ray", loses_reports=True),
            _without_head(_stage(directory / "head", address), directory / "checkpoints"),
        ]


def _stage(directory: Path, address: str) -> Stage:
    directory.mkdir()
    hosts, ray = HostsConfig(host_timeout_s=_TIMEOUT_S), RayConfig(address=address, hosts=_ACTORS)
    return Stage(
        directory, configure=lambda config: replace(config, actors=_ACTORS, hosts=hosts, ray=ray)
    )


def _without_head(stage: Stage, checkpoints: Path) -> Finding:
    """Lose the cluster during a run; it must save and say so."""
    error = ""
    try:
        stage.play(lose_head, start_hosts=on_ray, checkpoint_dir=checkpoints)
    except AsyncRLError as failed:
        error = str(failed)
    saved = Checkpointer(checkpoints).names()
    return Finding(
        target=_TARGET,
        what="a cluster that loses its head",
        measured=f"{error or 'no error'} ({len(saved)} checkpoints)",
        promised="the run saves, and ends with an error",
        passed="cluster is lost" in error and bool(saved),
    )


def _in_time(faults: Faults) -> Iterator[Finding]:
    limits = {"an actor": (_ACTOR_S, _ACTOR_S), "a host": (_GONE_S, _TIMEOUT_S + 1.0)}
    for what, fault in faults.seen.items():
        gone_s, known_s = limits.get(what, (_BACK_S, _BACK_S))
        yield Finding(
            target=_TARGET,
            what=f"{what} is lost" if what == "a node" else f"{what} is killed",
            measured=f"gone after {fault.gone_s:.2f} s, known after {fault.known_s:.2f} s, all "
            f"actors again after {fault.back_s:.1f} s",
            promised=f"<= {gone_s:g} s, {known_s:g} s, {_BACK_S:g} s",
            passed=fault.gone_s <= gone_s and fault.known_s <= known_s and fault.back_s <= _BACK_S,
            timed=True,
            numbers={"gone_s": fault.gone_s, "known_s": fault.known_s, "back_s": fault.back_s},
        )
