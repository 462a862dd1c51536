"""A network that is cut for a while, between a learner and its actors.

They talk over TCP and a proxy in between. Stalled, nothing passes and no connection breaks;
swallowed, what is sent is gone and no end is told of it, until the network is back and the dead
connections are refused. Actors must not be started again for it, nothing may be lost, and
experience must flow soon after. Who talks to a side that is no longer there must notice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from asyncrl.messages import Peer
from asyncrl.transports.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.common import note

__all__ = ["Cut", "Detour", "measure"]

_FLOWS_S = 3.0
_HEARTBEATS = 3
_CALM_S = 2.0


class Detour:
    """Has the actors of runs in this process connect through a proxy."""

    def __init__(self) -> None:
        self.proxy: Proxy

    @contextmanager
    def open(self) -> Iterator[None]:
        """Be in the way of all links that admit somebody in this block."""
        admit = ZmqLearnerLink.admit

        def admit_by_proxy(link: ZmqLearnerLink, peer: Peer) -> ZmqTransport:
            transport = admit(link, peer)
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

    detour: Detour
    seconds: float
    swallows: bool
    began: float = 0.0
    flows_s: float = 0.0
    steps_in_the_cut: int = 0
    given_up_s: list[float] = field(default_factory=list)
    """After the cut began."""

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Run in peace, cut, heal, and wait until experience of all actors flows."""
        yield from stage.begins()
        yield from stage.for_s(_CALM_S)
        proxy = self.detour.proxy
        state = proxy.swallowing if self.swallows else proxy.stalled
        self.began = time.monotonic()
        state.set()
        yield from stage.for_s(self.seconds)
        self.given_up_s = [at - self.began for at in proxy.given_up_at if at > self.began]
        lives = stage.lives.living()
        stored = {life.number: stage.audit.stored(life.number) for life in lives}
        state.clear()
        if self.swallows:
            proxy.cut()
        healed_at = time.monotonic()
        yield from stage.until(
            lambda: all(stage.audit.stored(number) > n for number, n in stored.items()),
            DEADLINE_S,
            "experience of all actors to flow again",
        )
        self.flows_s = time.monotonic() - healed_at
        yield from stage.for_s(_CALM_S)


def measure(size: Size, directory: Path) -> list[Finding]:
    """Cut the network in both ways, and look at what became of the run."""
    seconds, heartbeat_s = (5.0, 0.5) if size == "small" else (30.0, 2.0)
    found = []
    for swallows in (False, True):
        found += _cut(seconds, heartbeat_s, directory, swallows=swallows)
    return found


def _cut(seconds: float, heartbeat_s: float, directory: Path, *, swallows: bool) -> list[Finding]:
    name = "swallows what is sent" if swallows else "stalls"
    note(f"a network that {name} for {seconds:g} s")
    detour = Detour()
    cut = Cut(detour, seconds, swallows)
    transport = ZmqTransportConfig(bind="tcp://127.0.0.1", heartbeat_interval_s=heartbeat_s)
    own = directory / name.partition(" ")[0]
    own.mkdir()
    stage = Stage(own, configure=lambda config: replace(config, transport=transport))
    with detour.open():
        stage.play(cut)
    restarts = sum(actor["restarts"] for actor in stage.result.actors.values())
    books = stage.books(22, f"a network that {name} for {seconds:g} s")
    lost = stage.result.ledger["lost"]
    found = [
        Finding(
            target=22,
            what=f"{books.what}: until experience of all actors flows again",
            measured=f"{cut.flows_s:.2f} s after it is back",
            promised=f"<= {_FLOWS_S:g} s",
            passed=cut.flows_s <= _FLOWS_S,
            timed=True,
            numbers={"flows_s": cut.flows_s},
        ),
        replace(
            books,
            measured=f"{restarts:.0f} actors started again, {lost} transitions lost; "
            f"{books.measured}",
            promised=f"0, 0; {books.promised}",
            passed=books.passed and not restarts and not lost,
        ),
    ]
    return [*found, _half_open(cut, heartbeat_s)] if swallows else found


def _half_open(cut: Cut, heartbeat_s: float) -> Finding:
    """Say when both ends of each connection gave up a peer that was not heard of any more."""
    allowed_s = _HEARTBEATS * heartbeat_s
    first = sorted(cut.given_up_s)[:2]
    longest = max(first, default=float(cut.seconds))
    return Finding(
        target=22,
        what="a peer that is no longer there is given up",
        measured=f"{longest:.1f} s after its last word, with a heartbeat each {heartbeat_s:g} s",
        promised=f"<= {_HEARTBEATS} heartbeats, {allowed_s:g} s, and the machine's own delay",
        passed=bool(first) and longest <= allowed_s + heartbeat_s,
        timed=True,
        numbers={"longest_s": longest, "heartbeat_s": heartbeat_s},
    )
