"""A learner's launcher and a host that has joined it over TCP, in threads of one process."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import cloudpickle

from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.host import Host, HostTimeouts
from asyncrl.fleet.host_launcher import HostLauncher
from asyncrl.fleet.local import LocalLauncher
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.run.join import ActorKeys
from asyncrl.transport.zeromq import Curve, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_hosts import ZmqHostLine, ZmqHostsLink
from tests.fleet.bodies import Runs
from tests.support.helpers import wait_until
from tests.support.sample_messages import SCHEMA

DEADLINE_S = 60.0
TIMEOUTS = HostTimeouts(first_answer_s=DEADLINE_S, learner_s=DEADLINE_S, stop_s=5.0)
CONFIG = ZmqTransportConfig()


def carried(_: Peer, __: Any, order: Any) -> Runs:
    """Return the spec of an order: tests trust the network."""
    spec: Runs = cloudpickle.loads(base64.b64decode(order["spec"]))
    return spec


@contextmanager
def joined() -> Iterator[HostLauncher]:
    """Yield a launcher that one host has joined."""
    link = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=CONFIG).listen_to_hosts()
    leaves, ends = Interrupter(), threading.Event()
    arguments = link.address.endpoint, link.hosts.open(1), leaves  # type: ignore[attr-defined]
    host = threading.Thread(target=_be_host, args=arguments)
    reader = threading.Thread(target=_read, args=(link, ends))
    launcher = HostLauncher(
        ThreadLauncher(),
        link.hosts,
        config=HostsConfig(min_actors=0),
        admit=link.admit,
        objection_to_key=link.hosts.objection_to_key,
    )
    reader.start()
    host.start()
    try:
        wait_until(
            lambda: launcher.exits(0.01) == [] and launcher.has_room(ActorId(0), 8),
            DEADLINE_S,
            "a host",
        )
        yield launcher
    finally:
        launcher.close()
        leaves.stop("the test ends")
        host.join(DEADLINE_S)
        ends.set()
        reader.join(DEADLINE_S)
        link.close()


def _read(link: ZmqHostsLink, ends: threading.Event) -> None:
    while not ends.is_set():
        link.poll(0.1)


def _be_host(endpoint: str, curve: Curve, leaves: Interrupter) -> None:
    facts, keys = {"host": "a host", "room": 8}, ActorKeys(curve.server)
    with LocalLauncher() as launcher, closing(ZmqHostLine(endpoint, curve, CONFIG)) as line:
        Host(launcher, line, facts, carried, TIMEOUTS, offer_key=keys.offer).run(leaves)
