"""Wires the learner's side of actors on other machines; `join.py` wires the other side.

A host gets no code from the learner. It builds its actors from its own settings, and both sides
compare what actors are built from. An order adds what only the learner knows: which of the host's
public keys is the actor's, and the change of environments that is in force.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from asyncrl.core.env import plain_spec
from asyncrl.core.errors import ConfigError
from asyncrl.core.host_link import StartedHosts
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import Launcher
from asyncrl.core.messages import Peer, fits
from asyncrl.core.transport import Transport
from asyncrl.fleet.host_launcher import HostLauncher
from asyncrl.run.actor_plan import plan_actor
from asyncrl.run.join import Plain, facts_of, join_run
from asyncrl.run.join_key import JoinKey
from asyncrl.run.launchers import HELPERS
from asyncrl.run.parts import Parts, StartHosts
from asyncrl.run.plan import Fleet, RunPlan
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport

_log = logging.getLogger(__name__)


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


class HostsElsewhere:
    """Machines that join a run, and start its actors in place of this one.

    Attributes:
        config: The settings of the run, which listens where they can connect.
    """

    def __init__(self, config: RunConfig, parts: Parts, closing: ExitStack) -> None:
        """Take places for hosts that do not start themselves."""
        self.config, self._settings, self._closing = config, parts.get("run_config"), closing
        self._places: StartedHosts | None = None
        self._key_file: Path | None = None
        if config.launcher == "ray":
            self._places = _places(config, parts.get("start_hosts"), closing)
        elif (key_file := parts.get("join_key")) is not None:
            self._key_file = Path(key_file).absolute()  # the working directory may change
        else:
            raise ConfigError(
                "launcher=hosts needs a file for the join key: pass join_key=PATH, which hosts "
                "join with"
            )
        if self._places and config.transport.bind == "ipc":
            transport = replace(config.transport, bind=f"tcp://{self._places.address}")
            self.config = replace(config, transport=transport)

    def fleet(
        self, local: Launcher, transport: ZmqTransport, plan: RunPlan, undo: ExitStack
    ) -> Fleet:
        """Return what starts actors on the hosts that join, and all other processes here."""
        link = transport.listen_to_hosts()
        undo.callback(link.close)
        address, config = cast(ZmqTransport, link.address), plan.config
        facts = facts_of(config, plan.given_agents, plan.schema.hash())
        key = JoinKey(
            address=address.advertised(),
            curve=link.hosts.open(most_hosts=config.actors),
            spaces=plain_spec(plan.seen.spec),
            settings=self._settings,
        )
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
        return Fleet(
            launcher=launcher,
            link=link,
            admit=partial(_admit_here, link),
            network_s=launcher.network_s,
            hosts=launcher.hosts,
            invite=partial(self._invite, key, plan, facts),
        )

    def _invite(self, key: JoinKey, plan: RunPlan, facts: Plain, interrupter: Interrupter) -> None:
        """Let hosts join: write the key for those who join by themselves, or start them."""
        agents, make_processor = plan.given_agents, plan.make_processor
        if (path := self._key_file) is not None:
            usual = not (agents or make_processor)
            planned = plan_actor(plan.config, plan.seen.spec, facts) if usual else None
            replace(key, plan=planned).save(path)
            self._closing.callback(key.remove, path)
            _log.info(
                "actors run on hosts that join, here or on other machines: asyncrl join %s "
                "--actors N",
                path,
            )
        if self._places:
            serve = partial(join_run, key, plan.agent, plan.make_env, plan.config)
            own = {"actor_agents": agents, "make_processor": make_processor}
            self._places.start(partial(serve, **own), interrupter.fail)


def _admit_here(link: ZmqLearnerLink, peer: Peer, *, evaluates: bool = False) -> Transport:
    """Admit what runs here; actors elsewhere have no key here."""
    return link.admit(peer, evaluates=evaluates) if peer.actor_id in HELPERS else link.address


def _places(config: RunConfig, start_hosts: StartHosts | None, closing: ExitStack) -> StartedHosts:
    if start_hosts is None:
        raise ConfigError(
            "launcher=ray needs what starts the hosts there: pass start_hosts=on_ray (from asyncrl "
            "import on_ray), as `asyncrl train` does"
        )
    places = start_hosts(config)
    closing.callback(places.close)
    return places
