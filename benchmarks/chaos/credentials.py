"""Peers without the right credentials speak to an encrypted socket (target 18).

Eight kinds: no greeting at all, no keys, a password, the key of another server, an unknown key, a
revoked key, a good key while nobody answers at the gate, and protocols from before there were
keys. Each connects many times and says what an actor would say. Nothing of it may be handed on,
each must be refused and counted, and an actor that was let in before goes on. First one with the
right key is heard, for else nothing would be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.honest_site import HonestSite
from benchmarks.chaos.intruders import (
    NAME,
    OLD_GREETINGS,
    Intruder,
    Knocker,
    Stranger,
    admitted,
    close_gate,
    curve,
    keys_of,
    wrong_keys,
)
from benchmarks.common import note
from tests.support.sample_messages import PEER, SCHEMA

_MESSAGES = 5
_CONNECTIONS: dict[Size, int] = {"small": 10, "full": 260}
"""Of each kind, with so many messages each."""

_AT_ONCE = 10
_CONFIG = ZmqTransportConfig(max_message_bytes=1 << 16, request_interval_s=0.2)
_BROKEN_GATE = "gate without a keeper"

_Connect = Callable[[ZmqLearnerLink], Stranger]


def measure(size: Size, directory: Path) -> list[Finding]:
    """Let each kind connect, and one with the right key."""
    del directory
    heard = _right_key_is_heard()
    delivered = {kind: _delivered(kind, connect, _CONNECTIONS[size]) for kind, connect in _kinds()}
    messages = len(delivered) * _CONNECTIONS[size] * _MESSAGES
    got_in = {kind: count for kind, count in delivered.items() if count}
    named = "".join(f", {count} of {kind}" for kind, count in got_in.items())
    return [
        Finding(
            target=18,
            what=f"{len(delivered)} kinds",
            measured=f"{sum(delivered.values())} of {messages:,} messages delivered{named}",
            promised="0",
            passed=heard and not got_in,
            numbers={"messages": messages, "right_key_heard": int(heard), **delivered},
        )
    ]


def _kinds() -> list[tuple[str, _Connect]]:
    wrong = ("null", "plain", "wrong server", "unknown", "revoked")
    return [
        ("no greeting", partial(_knock, b"")),
        *((kind, partial(_intrude, kind)) for kind in wrong),
        (_BROKEN_GATE, _intrude_with_the_right_key),
        *((name, partial(_knock, greeting)) for name, greeting in OLD_GREETINGS.items()),
    ]


def _knock(greeting: bytes, learner: ZmqLearnerLink) -> Stranger:
    return Knocker(admitted(learner, NAME), greeting, _MESSAGES)


def _intrude(kind: str, learner: ZmqLearnerLink) -> Stranger:
    keys = wrong_keys(learner, kind)
    assert isinstance(learner.address, ZmqTransport)
    return Intruder(learner.address, keys, _MESSAGES)


def _intrude_with_the_right_key(learner: ZmqLearnerLink) -> Stranger:
    to = admitted(learner, NAME)
    good = keys_of(to)
    return Intruder(to, curve(good.server, good.public, good.secret), _MESSAGES)


def _delivered(kind: str, connect: _Connect, connections: int) -> int:
    """Let one kind connect so often; return how many of its messages were handed on."""
    site = _encrypted_site()
    try:
        if kind == _BROKEN_GATE:
            close_gate(site.learner)
        for done in range(0, connections, _AT_ONCE):
            _are_turned_away(site, connect, min(_AT_ONCE, connections - done))
            site.works()
        note(f"{kind}: {connections} connections, {len(site.strangers)} messages delivered")
        return len(site.strangers)
    finally:
        site.close()


def _are_turned_away(site: HonestSite, connect: _Connect, count: int) -> None:
    """Let strangers connect, and wait until none of them is left."""
    before = site.counted("handshake_failed")
    strangers = [connect(site.learner) for _ in range(count)]
    knockers = [each for each in strangers if isinstance(each, Knocker)]
    enough = before + len(strangers) - len(knockers)

    def all_refused() -> bool:
        counted = site.counted("handshake_failed") >= enough
        return counted and all(each.is_cut for each in knockers)

    site.until(all_refused, "strangers to be refused")
    for stranger in strangers:
        stranger.close()


def _right_key_is_heard() -> bool:
    site = _encrypted_site()
    try:
        stranger = _intrude_with_the_right_key(site.learner)
        site.until(lambda: len(site.strangers) >= _MESSAGES, "one with the right key")
        stranger.close()
    finally:
        site.close()
    return True


def _encrypted_site() -> HonestSite:
    return HonestSite(ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=_CONFIG), PEER)
