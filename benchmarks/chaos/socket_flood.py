"""Thousands of hostile connections while an honest actor works (target 16).

The learner listens over TCP, once on loopback without keys, where unauthorised get as far as the
decoder, and once encrypted. Another process attacks it without a pause; a third is an actor that
sends experience at a steady rate, as one does whose environment needs time. Measured are the
memory of the learner, what arrives of the honest actor's experience compared with a calm stretch
before, and whether anything of a stranger was handed on or run.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from asyncrl.core.messages import Experience, Peer
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransport, ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size
from benchmarks.common import note
from tests.support.attack import address_of, attack_socket
from tests.support.sample_messages import PEER, SCHEMA, make_experience, make_hello

_ATTACKS: dict[Size, int] = {"small": 600, "full": 25_000}
"""On each of the two sockets."""

_CALM_S: dict[Size, float] = {"small": 2.0, "full": 20.0}
_CONFIG = ZmqTransportConfig(max_message_bytes=1 << 20)
_GROWTH_BYTES = 5_000_000
_LEAST_SHARE = 0.8
_MESSAGES_PER_S = 200.0
_POLL_S = 0.01
_DEADLINE_S = 60.0
_REPORT_EVERY_S = 10.0


@dataclass(slots=True)
class _Watch:
    """A learner that receives everything, and what arrived."""

    learner: ZmqLearnerLink
    honest: int = 0
    unauthorised: set[Peer] = field(default_factory=set)

    def turn(self) -> None:
        for message in self.learner.poll(_POLL_S):
            if message.peer != PEER:
                self.unauthorised.add(message.peer)
            elif isinstance(message, Experience):
                self.honest += 1
                self.learner.acknowledge(message.peer, message.seq)

    def honest_per_s(self, seconds: float) -> float:
        """Receive for a while; return how much came from the honest actor."""
        began, before = time.monotonic(), self.honest
        while (passed := time.monotonic() - began) < seconds:
            self.turn()
        return (self.honest - before) / passed


@dataclass(frozen=True, slots=True)
class _Attack:
    """The result of one attack."""

    attacks: int
    seconds: float
    share: float
    """Of what the honest actor sends in peace."""

    growth_bytes: int
    unauthorised: int
    heard: bool
    refused: int
    alive: bool


def measure(size: Size, directory: Path) -> list[Finding]:
    """Attack a socket without keys, and one with."""
    plain = ZmqTransport.loopback(schema=SCHEMA, config=_CONFIG)
    encrypted = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=_CONFIG)
    return [
        finding
        for name, transport in (("loopback", plain), ("encrypted", encrypted))
        for finding in _findings(name, _attack(transport, size, directory / name))
    ]


def _attack(transport: ZmqTransport, size: Size, mark: Path) -> _Attack:
    learner = transport.listen()
    here = learner.admit(PEER)
    assert isinstance(here, ZmqTransport)
    spawn = multiprocessing.get_context("spawn")
    actor = spawn.Process(target=_work_steadily, args=(here,), daemon=True)
    actor.start()
    watch = _Watch(learner)
    try:
        return _under_attack(watch, here, size, mark)
    finally:
        learner.stop_actors()
        deadline = time.monotonic() + _DEADLINE_S
        while actor.is_alive() and time.monotonic() < deadline:
            watch.turn()
        actor.kill()
        actor.join()
        learner.close()


def _under_attack(watch: _Watch, here: ZmqTransport, size: Size, mark: Path) -> _Attack:
    """Compare a calm stretch with an attack, after a small one that warms up."""
    _await_actor(watch)
    attacks = _ATTACKS[size]
    _while_attacked(watch, here, attacks // 10, mark)
    calm = watch.honest_per_s(_CALM_S[size])
    memory = _resident_bytes()
    came, seconds = _while_attacked(watch, here, attacks, mark)
    after = watch.honest_per_s(1.0)
    return _Attack(
        attacks=attacks,
        seconds=seconds,
        share=came / seconds / calm,
        growth_bytes=_resident_bytes() - memory,
        unauthorised=len(watch.unauthorised),
        heard=mark.exists(),
        refused=sum(watch.learner.counters.values()),
        alive=after > 0,
    )


def _await_actor(watch: _Watch) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not watch.honest:
        assert time.monotonic() < deadline, "the honest actor sends"
        watch.turn()


def _while_attacked(
    watch: _Watch, here: ZmqTransport, attacks: int, mark: Path
) -> tuple[int, float]:
    """Receive while another process attacks; return what arrived, and in what time."""
    spawn = multiprocessing.get_context("spawn")
    arguments = (address_of(here), attacks, attacks, mark)
    attacker = spawn.Process(target=attack_socket, args=arguments, daemon=True)
    refused = watch.learner.counters
    attacker.start()
    while watch.learner.counters == refused and attacker.is_alive():  # it is being loaded
        watch.turn()
    began, before, reported = time.monotonic(), watch.honest, time.monotonic()
    while attacker.is_alive():
        watch.turn()
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            note(f"{attacks:,} attacks in {reported - began:.0f} s: {dict(watch.learner.counters)}")
    seconds = time.monotonic() - began
    attacker.join()
    assert attacker.exitcode == 0, "all attacks were made"
    return watch.honest - before, seconds


def _work_steadily(transport: ZmqTransport) -> None:
    """Send as an actor does, at a steady rate, until the learner stops it."""
    link = transport.connect(PEER)
    link.hello(make_hello(), _DEADLINE_S)
    seq, due = 0, time.monotonic()
    while not link.stopping():
        if link.send(make_experience(seq + 1, segments=64), 1.0):
            seq += 1
        due = max(due + 1 / _MESSAGES_PER_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    link.close()


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _findings(name: str, attack: _Attack) -> list[Finding]:
    rate = attack.attacks / attack.seconds
    numbers = {"attacks": attack.attacks, "seconds": attack.seconds, "refused": attack.refused}
    safe = attack.alive and not attack.heard and not attack.unauthorised and attack.refused > 0
    return [
        Finding(
            target=16,
            what=f"{name}, hostile connections",
            measured=f"{attack.attacks:,} at {rate:,.0f} a second, {attack.unauthorised} let in, "
            f"the learner {'runs' if attack.alive else 'is dead'}",
            promised="none let in, nothing run, the learner runs",
            passed=safe,
            numbers={**numbers, "unauthorised": attack.unauthorised, "heard": int(attack.heard)},
        ),
        Finding(
            target=16,
            what=f"{name}, memory",
            measured=f"{attack.growth_bytes / 1e6:+.1f} MB",
            promised=f"<= +{_GROWTH_BYTES / 1e6:g} MB",
            passed=attack.growth_bytes <= _GROWTH_BYTES,
            numbers={"growth_bytes": attack.growth_bytes},
        ),
        Finding(
            target=16,
            what=f"{name}, honest throughput",
            measured=f"{attack.share:.0%} of calm",
            promised=f">= {_LEAST_SHARE:.0%}",
            passed=attack.share >= _LEAST_SHARE,
            timed=True,
            numbers={"share": attack.share},
        ),
    ]
