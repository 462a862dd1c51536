"""A network that is cut for a while, between a learner and its actors.

They talk over TCP and a proxy in between. Stalled, nothing passes and no connection breaks;
swallowed, what is sent is lost without notice, until the network is back and the dead
connections are refused. Then over a separate network, whose cable is pulled. It must cost an actor
no more than one restart, and experience must flow soon after. Who talks to a side that is no longer
there must notice.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self
from unittest.mock import patch

from asyncrl.core.messages import Peer
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size, in_time, not_run
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Numbered, NumberedBatch
from benchmarks.proxy import Proxy

_NEW_NETWORK = 0x40000000


class Link:
    """A pair of connected interfaces: one here, one in a separate network namespace."""

    def __init__(self) -> None:
        number = os.getpid() % 250 + 1
        self.namespace = f"chaos{os.getpid()}"
        self.here, self._there = f"ch{os.getpid()}a", f"ch{os.getpid()}b"
        self.address = f"10.213.{number}.1"
        self._far_address = f"10.213.{number}.2"

    @staticmethod
    def reason_not() -> str:
        """Say why there can be none here; empty if there can."""
        if os.geteuid() or not shutil.which("ip"):
            return "only root may make networks, with the command ip"
        try:
            with Link():
                return ""
        except subprocess.CalledProcessError as error:
            return f"no network can be made: {error.stderr.strip()}"

    def pull(self) -> None:
        """Pull the cable: neither end is notified."""
        _ip("link", "set", self.here, "down")

    def plug(self) -> None:
        """Put it in again."""
        _ip("link", "set", self.here, "up")

    def __enter__(self) -> Self:
        try:
            self._make()
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        there = ("-n", self.namespace)
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.here, "type", "veth", "peer", "name", self._there)
        _ip("link", "set", self._there, "netns", self.namespace)
        _ip("addr", "add", f"{self.address}/24", "dev", self.here)
        _ip(*there, "addr", "add", f"{self._far_address}/24", "dev", self._there)
        _ip("link", "set", self.here, "up")
        _ip(*there, "link", "set", self._there, "up")

    def _remove(self) -> None:
        for what in (("link", "del", self.here), ("netns", "del", self.namespace)):
            subprocess.run(["ip", *what], check=False, capture_output=True)  # noqa: S603, S607


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607


@dataclass(frozen=True)
class FarAway:
    """Makes environments, and moves their actor's process to the far end of a link."""

    world: Numbered
    namespace: str
    learner: int = field(default_factory=os.getpid)

    def __call__(self) -> NumberedBatch:
        """Move, unless this is the learner."""
        if os.getpid() != self.learner:
            with open(f"/run/netns/{self.namespace}", "rb") as file:  # noqa: PTH123
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _NEW_NETWORK):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
        return self.world()


_FLOWS_S = 3.0
_HEARTBEATS = 3
_CALM_S = 2.0
_LOOPBACK = "tcp://127.0.0.1"
_PULLED_AT_LEAST_S = 10.0
"""The system's attempts to connect lie further apart the longer there is no network."""


class Detour:
    """Has the actors of runs in this process connect through a proxy."""

    def __init__(self) -> None:
        self.proxy: Proxy

    @contextmanager
    def open(self) -> Iterator[None]:
        """Route all links that admit a peer in this block through the proxy."""
        admit = ZmqLearnerLink.admit

        def admit_by_proxy(
            link: ZmqLearnerLink, peer: Peer, *, evaluates: bool = False
        ) -> ZmqTransport:
            transport = admit(link, peer, evaluates=evaluates)
            assert isinstance(transport, ZmqTransport)
            if not hasattr(self, "proxy"):
                self.proxy = Proxy(int(transport.endpoint.rpartition(":")[2]))
            return replace(transport, endpoint=f"tcp://127.0.0.1:{self.proxy.port}")

        with patch.object(ZmqLearnerLink, "admit", admit_by_proxy):
            yield
        self.proxy.close()


@dataclass(slots=True)
class Cut:
    """A script that cuts the network once."""

    seconds: float
    begin: Callable[[], None]
    heal: Callable[[], None]
    began: float = 0.0
    ended: float = 0.0
    flows_s: float = 0.0

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Run in peace, cut, heal, and wait until experience of all actors flows."""
        yield from stage.begins()
        yield from stage.for_s(_CALM_S)
        self.began = time.monotonic()
        self.begin()
        yield from stage.for_s(self.seconds)
        before = {one.number: stage.audit.stored(one.number) for one in stage.incarnations.living()}

        def flows() -> bool:
            living = [one.number for one in stage.incarnations.living()]
            return len(living) == stage.config.actors and all(
                stage.audit.stored(number) > before.get(number, 0) for number in living
            )

        self.ended = time.monotonic()
        self.heal()
        yield from stage.until(flows, DEADLINE_S, "experience of all actors to flow again")
        self.flows_s = time.monotonic() - self.ended
        yield from stage.for_s(_CALM_S)


def measure(size: Size, directory: Path) -> list[Finding]:
    """Cut the network in each way, and return the findings."""
    seconds, heartbeat_s = (5.0, 0.5) if size == "small" else (30.0, 2.0)
    ways = (_stalled, _swallowed, _pulled)
    found: list[Finding] = []
    for number, way in enumerate(ways):
        own = directory / str(number)
        own.mkdir()
        found += way(seconds, heartbeat_s, own)
    return found


def _stalled(seconds: float, heartbeat_s: float, directory: Path) -> list[Finding]:
    detour = Detour()
    begin = lambda: detour.proxy.stalled.set()  # noqa: E731, PLW0108  # it is made later
    heal = lambda: detour.proxy.stalled.clear()  # noqa: E731, PLW0108
    cut = Cut(seconds, begin, heal)
    stage = Stage(directory, configure=_over(_LOOPBACK, heartbeat_s))
    with detour.open():
        stage.play(cut)
    return _judge("stalls", cut, stage)


def _swallowed(seconds: float, heartbeat_s: float, directory: Path) -> list[Finding]:
    detour = Detour()

    def heal() -> None:
        detour.proxy.swallowing.clear()
        detour.proxy.cut()

    begin = lambda: detour.proxy.swallowing.set()  # noqa: E731, PLW0108  # it is made later
    cut = Cut(seconds, begin, heal)
    stage = Stage(directory, configure=_over(_LOOPBACK, heartbeat_s))
    with detour.open():
        stage.play(cut)
    given_up = [at for at in detour.proxy.given_up_at if cut.began < at < cut.ended]
    half_open = _half_open([at - cut.began for at in given_up], seconds, heartbeat_s)
    return [*_judge("swallows what is sent", cut, stage), half_open]


def _pulled(seconds: float, heartbeat_s: float, directory: Path) -> list[Finding]:
    """Pull a cable: here the system has its own ideas of when to try again."""
    if reason := Link.reason_not():
        return [not_run(22, "a network whose cable is pulled", f"<= {_FLOWS_S:g} s", reason)]
    with Link() as link:
        cut = Cut(max(seconds, _PULLED_AT_LEAST_S), link.pull, link.plug)
        stage = Stage(
            directory,
            configure=_over(f"tcp://{link.address}", heartbeat_s),
            place=partial(FarAway, namespace=link.namespace),
        )
        stage.play(cut)
    return _judge("has its cable pulled", cut, stage)


def _over(bind: str, heartbeat_s: float) -> Callable[[RunConfig], RunConfig]:
    transport = ZmqTransportConfig(bind=bind, heartbeat_interval_s=heartbeat_s)
    return lambda config: replace(config, transport=transport)


def _judge(how: str, cut: Cut, stage: Stage) -> list[Finding]:
    restarts = sum(actor["restarts"] for actor in stage.result.actors.values())
    balance = stage.balance(22, f"a network that {how} for {cut.seconds:g} s")
    return [
        in_time(
            22, f"{balance.what}: until all actors' experience flows again", cut.flows_s, _FLOWS_S
        ),
        replace(
            balance,
            measured=f"{restarts:.0f} actors started again; {balance.measured}",
            promised=f"<= {stage.config.actors}; {balance.promised}",
            passed=balance.passed and restarts <= stage.config.actors,
        ),
    ]


def _half_open(given_up_s: list[float], seconds: float, heartbeat_s: float) -> Finding:
    """Say when both ends of a connection gave up a peer that was not heard of any more."""
    allowed_s = _HEARTBEATS * heartbeat_s
    longest = max(sorted(given_up_s)[:2], default=seconds)
    return Finding(
        target=22,
        what="a peer that is no longer there is given up",
        measured=f"{longest:.1f} s after its last word, with a heartbeat each {heartbeat_s:g} s",
        promised=f"<= {_HEARTBEATS} heartbeats, {allowed_s:g} s, and one more for the machine",
        passed=bool(given_up_s) and longest <= allowed_s + heartbeat_s,
        timed=True,
        numbers={"longest_s": longest, "heartbeat_s": heartbeat_s},
    )
