"""A learner's launcher and hosts that have joined it over TCP, in threads of one process."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import cloudpickle

from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import Launcher
from asyncrl.core.messages import Peer
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


def carried(_: Peer, __: Any, order: Any) -> Runs:
    """Return the spec of an order: tests trust the network."""
    spec: Runs = cloudpickle.loads(base64.b64decode(order["spec"]))
    return spec


class Fleet:
    """A learner's port on the loopback address, and the hosts that a test starts."""

    def __init__(self) -> None:
        self.link: ZmqHostsLink = ZmqTransport.tcp(
            "tcp://127.0.0.1", schema=SCHEMA, config=ZmqTransportConfig()
        ).listen_to_hosts()
        self.curve: Curve = self.link.hosts.open(4)
        self._ends = threading.Event()
        self._reads = threading.Thread(target=self._read)
        self._reads.start()
        self.hosts: list[tuple[threading.Thread, Interrupter]] = []
        self.outcomes: list[Any] = []

    def launcher(self, *, local: Launcher | None = None, **config: Any) -> HostLauncher:
        return HostLauncher(
            local or ThreadLauncher(),
            self.link.hosts,
            config=HostsConfig(min_actors=0, **config),
            admit=self.link.admit,
            objection_to_key=self.link.hosts.objection_to_key,
        )

    def line(self) -> ZmqHostLine:
        endpoint = self.link.address.endpoint  # type: ignore[attr-defined]
        return ZmqHostLine(endpoint, self.curve, ZmqTransportConfig())

    def join(
        self, make_launcher: Callable[[], Any], *, room: int = 8, timeouts: HostTimeouts = TIMEOUTS
    ) -> Interrupter:
        """Start a host in a thread; return what asks it to leave."""
        interrupter = Interrupter()
        args = (make_launcher, room, timeouts, interrupter)
        thread = threading.Thread(target=self._serve, args=args)
        thread.start()
        self.hosts.append((thread, interrupter))
        return interrupter

    def close(self) -> None:
        for thread, interrupter in self.hosts:
            interrupter.stop("the test ends")
            thread.join(DEADLINE_S)
        self._ends.set()
        self._reads.join(DEADLINE_S)
        self.link.close()

    def _read(self) -> None:
        while not self._ends.is_set():
            self.link.poll(0.1)

    def _serve(
        self,
        make_launcher: Callable[[], Any],
        room: int,
        timeouts: HostTimeouts,
        interrupter: Interrupter,
    ) -> None:
        facts = {"host": "a host", "room": room}
        with ExitStack() as undo:
            launcher = undo.enter_context(make_launcher())
            line = self.line()
            undo.callback(line.close)
            keys = ActorKeys(self.curve.server)
            host = Host(launcher, line, facts, carried, timeouts, offer_key=keys.offer)
            try:
                self.outcomes.append(host.run(interrupter))
            except Exception as error:
                self.outcomes.append(error)


@contextmanager
def joined() -> Iterator[HostLauncher]:
    """Yield a launcher that one host has joined."""
    fleet = Fleet()
    launcher = fleet.launcher()
    try:
        fleet.join(LocalLauncher)
        wait_until(
            lambda: launcher.exits(0.01) == [] and launcher.has_room(0, 8),  # type: ignore[arg-type]
            DEADLINE_S,
            "a host",
        )
        yield launcher
    finally:
        launcher.close()
        fleet.close()
