"""Messages from a life that is over, and from a run that is over (target 20).

On a socket without keys, where nothing but the protocol keeps them out. An actor's slot has been
taken by its next life, which works on; its former life, and an actor of the run before at the same
address, go on sending experience as fast as they can. All of it must be counted, and none of it
handed on.
"""

from __future__ import annotations

from pathlib import Path

import zmq

from asyncrl.core.messages import Peer
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq import ZmqTransport
from asyncrl.transport.zeromq_socket import routing_id, routing_prefix
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.honest_site import HonestSite
from benchmarks.common import note
from tests.support.sample_messages import SCHEMA, make_experience, make_peer

_MESSAGES: dict[Size, int] = {"small": 2_000, "full": 100_000}
_AT_ONCE = 500
_TELL_EVERY = 10_000
_NOW = make_peer(incarnation=1)


class _Past:
    """Sends experience under a name of former times, and does not listen."""

    def __init__(self, endpoint: str, run_id: str, peer: Peer) -> None:
        self._wire = WireFormat(schema=SCHEMA, run_id=run_id)
        self._peer = peer
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, routing_id(routing_prefix(run_id), peer))
        self._socket.connect(endpoint)

    def send(self, first: int, count: int) -> None:
        """Send so many messages, numbered from `first` on."""
        for seq in range(first, first + count):
            frames = self._wire.encode(make_experience(seq, self._peer))
            self._socket.send_multipart([bytes(frame) for frame in frames])

    def close(self) -> None:
        """Be gone."""
        self._socket.close(0)
        self._context.term()


def measure(size: Size, directory: Path) -> list[Finding]:
    """Let a former life speak, then an actor of the run before."""
    del directory
    count = _MESSAGES[size] // 2
    handed_on = {
        "of a former life": _handed_on("stale", None, make_peer(), count),
        "of a former run": _handed_on("foreign_run", "the run before", _NOW, count),
    }
    told = ", ".join(f"{number} {whose}" for whose, number in handed_on.items())
    return [
        Finding(
            target=20,
            what="stored",
            measured=f"{told}, of {count:,} each",
            promised="0",
            passed=not any(handed_on.values()),
            numbers={"messages": 2 * count, **handed_on},
        )
    ]


def _handed_on(reason: str, run_id: str | None, peer: Peer, count: int) -> int:
    """Return how many messages got through; raise if they are not all counted for the reason."""
    site = HonestSite(ZmqTransport.loopback(schema=SCHEMA), _NOW)
    past = _Past(site.here.endpoint, run_id or site.here.run_id, peer)
    try:
        for done in range(0, count, _AT_ONCE):
            past.send(done + 1, min(_AT_ONCE, count - done))
            enough = min(done + _AT_ONCE, count)

            def all_told(enough: int = enough) -> bool:
                return site.counted(reason) + len(site.strangers) >= enough

            site.until(all_told, f"all to be counted as {reason}")
            site.works()
            if (done + _AT_ONCE) % _TELL_EVERY == 0:
                note(f"{done + _AT_ONCE:,} messages, {reason}")
    finally:
        past.close()
        site.close()
    return len(site.strangers)
