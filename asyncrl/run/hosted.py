"""Wires the learner's side of actors on other machines; `join.py` wires the other side.

A host gets no code from the learner. It builds its actors from its own settings, and both sides
compare what actors are built from. An order adds what only the learner knows: which of the host's
public keys is the actor's, and the change of environments that is in force.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from asyncrl.core.agent import AgentConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.host_link import StartedHosts
from asyncrl.core.launcher import Launcher
from asyncrl.core.messages import SOFTWARE, Peer, fits
from asyncrl.core.settings import to_parameters
from asyncrl.core.transport import Transport
from asyncrl.fleet.host_launcher import HostLauncher
from asyncrl.run.join_key import JoinKey
from asyncrl.run.launchers import HELPERS
from asyncrl.run.parts import StartHosts
from asyncrl.run.plan import Admit
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import Curve, ZmqLearnerLink, ZmqTransport

if TYPE_CHECKING:
    from asyncrl.transport.zeromq_hosts import ZmqHostsLink

_log = logging.getLogger(__name__)

Plain = Mapping[str, Any]

_WHERE = ("bind", "advertise", "bind_every_interface")
"""Settings of the transport that may differ between the two sides."""


def facts_of(
    agent: AgentConfig,
    actor_agents: Sequence[AgentConfig] | None,
    config: RunConfig,
    schema_hash: str,
) -> Plain:
    """Return what must be equal on both sides, as JSON."""
    transport = to_parameters(config.transport)
    settings = {
        "agent": to_parameters(agent),
        "actor_agents": [to_parameters(one) for one in actor_agents or ()],
        "actors": config.actors,
        "seed": config.seed,
        "segment": to_parameters(config.segment),
        "supervision.restart": to_parameters(config.supervision.restart),
        "transport": {name: v for name, v in transport.items() if name not in _WHERE},
    }
    facts = {"software": SOFTWARE, "schema": schema_hash, "settings": settings}
    return cast(Plain, json.loads(json.dumps(facts)))


def objection_to(ours: Plain, theirs: Plain) -> str:
    """Return why a host may not join: what differs, in the words of both sides."""
    if not fits(theirs.get("software")):
        return (
            f"the host runs {theirs.get('software')!r:.120}, the learner runs "
            f"{ours['software']!r}: install the same versions on all machines"
        )
    for name, here, there in _differences(ours["settings"], theirs.get("settings"), ""):
        return (
            f"{name} is {there!r:.200} at the host and {here!r:.200} at the learner: join with the "
            "settings of the run"
        )
    if theirs.get("schema") != ours["schema"]:
        return (
            f"the host would send segments of schema {theirs.get('schema')!r:.80}, the learner "
            f"stores {ours['schema']!r}: their environments differ"
        )
    return ""


def _differences(ours: Any, theirs: Any, path: str) -> list[tuple[str, Any, Any]]:  # noqa: ANN401
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for name in dict.fromkeys([*ours, *theirs]):
            inner = f"{path}.{name}" if path else str(name)
            found += _differences(ours.get(name), theirs.get(name), inner)
        return found
    return [] if ours == theirs else [(path, ours, theirs)]


def admission(link: ZmqLearnerLink, config: RunConfig) -> Admit:
    """Return what gives processes their transports; those of actors elsewhere have no key here."""
    return partial(_admit_here, link) if config.elsewhere else link.admit


def _admit_here(link: ZmqLearnerLink, peer: Peer, *, evaluates: bool = False) -> Transport:
    return link.admit(peer, evaluates=evaluates) if peer.actor_id in HELPERS else link.address


def admit_hosts(
    local: Launcher,
    link: ZmqHostsLink,
    config: RunConfig,
    facts: Plain,
    spaces: Plain,
    settings: Mapping[str, Any] | None,
) -> tuple[HostLauncher, JoinKey]:
    """Return what starts actors on the hosts that join, and the key that they join with."""
    address = cast(ZmqTransport, link.address)
    curve: Curve = link.hosts.open(most_hosts=config.actors)
    launcher = HostLauncher(
        local,
        link.hosts,
        config=config.hosts,
        admit=link.admit,
        objection_to_key=link.hosts.objection_to_key,
        objection=partial(objection_to, facts),
        traffic_bytes=link.traffic_bytes.__getitem__,
        welcome={"run": address.run_id},
    )
    return launcher, JoinKey(
        address=address.advertised(), curve=curve, spaces=spaces, settings=settings
    )


def checked_key_file(config: RunConfig, key_file: str | PathLike[str] | None) -> Path | None:
    """Return where the key is written for hosts that join by themselves; None if none do."""
    if config.launcher != "hosts":
        if key_file is not None:
            raise ConfigError(
                f"join_key has no effect with launcher={config.launcher}, which no hosts join by "
                "themselves; remove it, or set launcher=hosts"
            )
        return None
    if key_file is None:
        raise ConfigError(
            "launcher=hosts needs a file for the join key: pass join_key=PATH, which hosts join "
            "with"
        )
    return Path(key_file).absolute()  # the working directory may change until it is removed


def publish(
    key: JoinKey, path: Path | None, closing: ExitStack, make_plan: Callable[[], Plain | None]
) -> None:
    """Write the key, if hosts join by themselves, and log how they do.

    `make_plan` returns the plan for programs that connect, if they need no torch.
    """
    if path is None:
        return
    replace(key, plan=make_plan()).save(path)
    closing.callback(key.remove, path)
    _log.info(
        "actors run on hosts that join, here or on other machines: asyncrl join %s --actors N", path
    )


def places_for(
    config: RunConfig, start_hosts: StartHosts | None, closing: ExitStack
) -> tuple[StartedHosts | None, RunConfig]:
    """Take places for hosts that do not start themselves, and listen where they can connect."""
    if config.launcher != "ray":
        return None, config
    if start_hosts is None:
        raise ConfigError(
            "launcher=ray needs what starts the hosts there: pass start_hosts=on_ray (from asyncrl "
            "import on_ray), as `asyncrl train` does"
        )
    places = start_hosts(config)
    closing.callback(places.close)
    if config.transport.bind != "ipc":
        return places, config
    transport = replace(config.transport, bind=f"tcp://{places.address}")
    return places, replace(config, transport=transport)
