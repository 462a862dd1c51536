"""Actors on hosts that join: the learner's side of a fleet of machines.

`host.py` is the other side, one process per machine, which starts the actors there. Each host
reports its actors' heartbeats several times per second, so that nothing here waits for a network.
A host that is not heard for a while is given up with all its actors: they start again elsewhere,
and what they still send is ignored. Does not know what actors do.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asyncrl.core.errors import ConfigError, Refused, WireError
from asyncrl.core.host_link import HostPort
from asyncrl.core.launcher import ActorExit, Launcher, Place, ProgressReport, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import MOST_ACTORS, ActorId
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.host_messages import (
    Conversation,
    Plain,
    actor_of,
    decode,
    encode,
    exit_of,
    plain_peer,
)
from asyncrl.fleet.local_output import CONTROLS

_log = logging.getLogger(__name__)

_QUIET_S = 1.5
"""Seconds without a report after which an actor's heartbeats cannot be known."""

_LONGEST_LOOK_S = 1.0
"""Maximum time between two reads of the socket that counts as silence: in a longer one, this
process itself was stopped or busy."""

_POLL_S = 0.02
_CLOSE_S = 5.0
_FIRST_REMINDER_S = 10.0
_TRIPS = 16
"""Round trips of a host whose smallest counts: the others contain waits of the processes."""
_MOST_HOSTS = 4096
_MOST_LINES, _LINES_S = 50, 10.0
"""Maximum number of lines of one kind in the log, in this time."""
_MOST_ROOM = 4096


def _one_line(text: str, most: int | None = None) -> str:
    """Return what may be logged and shown of a host's words."""
    return " ".join(CONTROLS.sub("", text).split())[:most]


@dataclass(slots=True)
class _Actor:
    report: ProgressReport = field(default_factory=partial(ProgressReport, 0, 0, waiting=False))
    memory_bytes: int = 0
    pid: int = 0


@dataclass(slots=True)
class _Host:
    name: str
    room: int
    talk: Conversation = field(default_factory=Conversation)
    keys: deque[str] = field(default_factory=deque)
    """Public keys for its next actors, one each."""
    offered: set[str] = field(default_factory=set)
    """All public keys that it has ever offered."""
    actors: dict[Peer, _Actor] = field(default_factory=dict)
    started: int = 0
    traffic_bytes: int = 0
    """Of actors that have ended."""
    silent_s: float = 0.0
    trips_s: deque[float] = field(default_factory=partial(deque, maxlen=_TRIPS))
    is_program: bool = False
    """Whether it is a program that acts in its own loop, and may leave at any time."""
    leaves: str = ""
    """Why it takes no further actors; empty while it does."""

    @property
    def free(self) -> int:
        return 0 if self.leaves else min(self.room - len(self.actors), len(self.keys))


class HostLauncher:
    """Starts actors on the hosts that have joined, and the run's other processes on this machine.

    Args:
        local: Starts the processes that are not actors; it is closed with this one.
        port: The messages of hosts.
        config: Timeouts, and the least number of actors.
        admit: Lets an actor connect with the public key that its host has offered.
        objection_to_key: Returns why no actor may have this public key, or an empty string.
        objection: Returns why a host may not join, or an empty string.
        traffic_bytes: Returns how much an actor and the learner have exchanged.
        welcome: What a host needs to know of the run, as JSON.
        clock: Measures silence.
    """

    def __init__(
        self,
        local: Launcher,
        port: HostPort,
        *,
        config: HostsConfig,
        admit: Callable[[Peer, str], object],
        objection_to_key: Callable[[str], str],
        objection: Callable[[Plain], str] = lambda _: "",
        traffic_bytes: Callable[[Peer], int] = lambda _: 0,
        welcome: Plain | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._local = local
        self._port = port
        self._actors = 0  # of the run, for which its hosts wait
        self._config = config
        self._admit = admit
        self._objection_to_key = objection_to_key
        self._objection = objection
        self._traffic_bytes = traffic_bytes
        self._welcome = welcome or {}
        self._clock = clock
        self._hosts: dict[bytes, _Host] = {}
        self._where: dict[Peer, _Host] = {}
        self._ended: dict[Peer, ActorExit] = {}
        self._begun = config.min_actors == 0
        self._closed = False
        self._summary: dict[str, dict[str, float]] = {}
        self._noted = defaultdict[str, deque[float]](partial(deque, maxlen=_MOST_LINES))
        self._looked_at = clock()
        self._waits_since: float | None = None
        """When it first waited for hosts: the key may be written long after this was made."""
        self._reads = port.reads
        self._ticks = 0
        self._reminder_s = _FIRST_REMINDER_S

    def has_room(self, actor_id: ActorId, actors: int) -> bool:
        """Whether a host has room for one more actor, and the least number of actors was there."""
        self._actors = actors
        if not self._is_actor(actor_id):
            return True
        self._begun |= sum(host.room for host in self._hosts.values()) >= self._least
        return self._begun and any(host.free > 0 for host in self._hosts.values())

    @property
    def _least(self) -> int:
        """Number of actors that must have room before the first one starts."""
        least, actors = self._config.min_actors, self._actors
        return actors if least is None else min(least, actors)

    def launch(self, peer: Peer, spec: Spec) -> None:
        """Start an actor on the host with the most room, and return at once."""
        if not self._is_actor(peer.actor_id):
            self._local.launch(peer, spec)
            return
        if peer in self._where:
            raise ValueError(f"{peer} is running already")
        order = spec.instructions()
        host = max(self._hosts.values(), key=lambda host: host.free, default=None)
        if host is None or host.free <= 0:
            raise ConfigError(f"no host has room for {peer}; ask `has_room` first")
        self._where[peer] = host
        host.actors[peer] = _Actor()
        host.started += 1
        key = host.keys.popleft()
        self._admit(peer, key)
        host.talk.say(launch=plain_peer(peer), order={**order, "key": key})
        self._speak()

    def exits(self, timeout_s: float) -> list[ActorExit]:
        """Return the actors that have exited or were lost; wait at most `timeout_s` for one."""
        deadline = self._clock() + timeout_s
        while True:
            ended = self._local.exits(0.0)
            left_s = deadline - self._clock()
            self._hear(0.0 if ended else max(0.0, min(left_s, _POLL_S)))
            self._check_silence()
            self._speak()
            for one in self._ended.values():
                host = self._where.pop(one.peer)
                host.traffic_bytes += self._traffic_bytes(one.peer)
                del host.actors[one.peer]
                ended.append(one)
            self._ended.clear()
            if ended or left_s <= 0:
                break
        self._remind()
        self._summarize()
        return ended

    def progress(self, peer: Peer) -> ProgressReport:
        """Return the heartbeats of an actor in its host's newest report.

        While the host is silent they cannot be known; then they change, so that the actor does not
        count as hanging: `host_timeout_s` applies to it.
        """
        self._hear(0.0)
        host = self._where.get(peer)
        if host is None:
            return self._local.progress(peer)
        report = host.actors[peer].report
        if host.silent_s <= _QUIET_S:
            return report
        self._ticks += 1
        return replace(report, waiting=True, waits=report.waits + self._ticks)

    def memory_bytes(self, peer: Peer) -> int:
        """Return the memory that an actor holds, in its host's newest report."""
        host = self._where.get(peer)
        return host.actors[peer].memory_bytes if host else self._local.memory_bytes(peer)

    def place(self, peer: Peer) -> Place:
        """Return an actor's host, and its process in its host's newest report."""
        if host := self._where.get(peer):
            return Place(host.name, host.actors[peer].pid)
        return self._local.place(peer)

    def finish(self, peer: Peer) -> None:
        """Ask a running actor to send what it has and exit with code 0; do not wait for it."""
        if host := self._where.get(peer):
            host.talk.say(finish=plain_peer(peer))
            self._speak()
        else:
            self._local.finish(peer)

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        """Kill an actor and all that it has started; its exit follows in `exits`."""
        if host := self._where.get(peer):
            host.talk.say(kill=plain_peer(peer), stacks=with_stacks)
            self._speak()
        elif not self._is_actor(peer.actor_id):
            self._local.kill(peer, with_stacks=with_stacks)

    def network_s(self, peer: Peer) -> float:
        """Return a short round trip to an actor's host; 0 if unknown. Any thread."""
        host = self._where.get(peer)
        return min(host.trips_s, default=0.0) if host else 0.0

    def hosts(self) -> dict[str, dict[str, float]]:
        """Return what is known of each host, by name: numbers. Any thread."""
        return {name: dict(numbers) for name, numbers in self._summary.items()}

    def close(self) -> None:
        """Inform all hosts that the run has ended, so that they end their actors and themselves."""
        if not self._closed:
            self._closed = True
            for host in self._hosts.values():
                host.talk.say(end="the run has ended")
            self._speak()
            deadline = self._clock() + _CLOSE_S
            while self._clock() < deadline and not self._are_informed():
                self._hear(_POLL_S)
        self._local.close()

    def _are_informed(self) -> bool:
        return all(
            host.talk.is_acknowledged or host.leaves or host.silent_s > _QUIET_S
            for host in self._hosts.values()
        )

    def _is_actor(self, actor_id: ActorId) -> bool:
        return 0 <= actor_id < MOST_ACTORS

    def _hear(self, timeout_s: float) -> None:
        for who, data in self._port.receive(timeout_s):
            self._on(who, data)

    def _on(self, who: bytes, data: bytes) -> None:
        """Process a message of a host, and answer it."""
        try:
            message = decode(data)
            host = self._hosts.get(who) or self._join(who, message)
            if host is not None:
                host.silent_s = 0.0
                for item in host.talk.take(message):
                    self._on_item(host, item)
                self._on_reports(host, message.get("actors", []))
                self._on_echo(host, message.get("echo"))
                self._port.send(who, host.talk.message(at=self._clock()))
        except Refused as error:
            self._port.send(who, encode({"refused": str(error)}))
            self._lose(who, self._hosts[who], f"was refused: {error}")
        except WireError as error:
            self._note("a message of a host is ignored: %s", error)

    def _join(self, who: bytes, message: Plain) -> _Host | None:
        """Return a new host, or answer why it may not join."""
        match message.get("items"):
            case [[1, {"join": {"host": str(name), "room": int(room)} as facts}], *_]:
                pass
            case _:  # it was lost, or joined another learner
                self._port.send(who, encode({"lost": "the learner does not know this host"}))
                return None
        name, why = _one_line(name, 80), _one_line(self._objection(facts))
        if not 0 < room <= _MOST_ROOM or len(self._hosts) >= _MOST_HOSTS:
            why = f"{room} actors on one host, or {len(self._hosts)} hosts, are too many"
        if why:
            self._note("host %s is refused: %s", name, why)
            self._port.send(who, encode({"refused": why}))
            return None
        program = facts.get("program") is True
        host = self._hosts[who] = _Host(self._free_name(name), room, is_program=program)
        before = self._summary.get(host.name, {})  # it was lost, and is back
        host.started = int(before.get("started", 0))
        host.traffic_bytes = int(before.get("traffic_bytes", 0))
        host.talk.say(welcome=dict(self._welcome))
        joined = host.name, room
        self._note("host %s has joined with room for %d actors", *joined, level=logging.INFO)
        return host

    def _free_name(self, name: str) -> str:
        """Return a name that no other host has now."""
        taken = {host.name for host in self._hosts.values()}
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        return next(n for n in itertools.chain([name], numbered) if n not in taken)

    def _on_item(self, host: _Host, item: Plain) -> None:
        match item:
            case {"ended": _}:
                ended = exit_of(item)
                if ended.peer in host.actors:
                    gone = host.leaves and f"host {host.name} {host.leaves}"
                    self._ended[ended.peer] = replace(ended, gone=gone)
            case {"keys": list(keys)}:
                for key in keys:
                    self._on_key(host, key)
            case {"leaves": str(why)}:
                host.leaves = f"leaves the run: {_one_line(why, 200)}"
                level = logging.INFO if host.is_program else logging.WARNING
                self._log_loss(host, host.leaves, level)

    def _on_key(self, host: _Host, key: Any) -> None:  # noqa: ANN401  # from JSON
        """Keep a public key for an actor to come; raise `Refused` if none may have it."""
        if not isinstance(key, str):
            raise Refused(f"a public key must be a text, got {key!r:.60}")
        if key in host.offered:
            return
        if why := self._objection_to_key(key):
            raise Refused(why)
        if any(key in other.offered for other in self._hosts.values()):
            raise Refused(f"the public key {key!r:.60} is that of another host")
        if len(host.keys) >= host.room:
            raise Refused(f"it has offered more public keys than it has places, {host.room}")
        host.offered.add(key)
        host.keys.append(key)

    def _on_reports(self, host: _Host, reports: Any) -> None:  # noqa: ANN401  # from JSON
        if not isinstance(reports, list):
            raise WireError("reports of actors that are no list")
        for plain in reports:
            peer, heartbeats, memory_bytes, pid = actor_of(plain)
            if peer in host.actors:
                host.actors[peer] = _Actor(heartbeats, memory_bytes, pid)

    def _on_echo(self, host: _Host, echo: Any) -> None:  # noqa: ANN401  # from JSON
        """Measure a round trip, if the host returns a time that it was sent."""
        match echo:
            case [float(sent_at), float(held_s)] if held_s >= 0:
                trip_s = self._clock() - sent_at - held_s
                if 0 <= trip_s <= self._config.host_timeout_s:  # infinite times can be sent, too
                    host.trips_s.append(trip_s)

    def _check_silence(self) -> None:
        """Give up hosts that were not heard while the socket was read."""
        now, reads = self._clock(), self._port.reads
        if reads == self._reads:
            return
        passed_s = min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at, self._reads = now, reads
        for who, host in list(self._hosts.items()):
            host.silent_s += passed_s
            if host.silent_s > self._config.host_timeout_s:
                self._lose(who, host, f"was not heard for {host.silent_s:.0f} s")

    def _lose(self, who: bytes, host: _Host, why: str) -> None:
        if not host.leaves or host.actors:
            self._log_loss(host, why)
        for peer, actor in host.actors.items():
            gone = f"host {host.name} {why}"
            self._ended.setdefault(peer, ActorExit(peer=peer, code=1, last=actor.report, gone=gone))
        del self._hosts[who]
        self._summarize(host)

    def _summarize(self, *lost: _Host) -> None:
        now = {
            host.name: {
                "room": host.room,
                "actors": 0 if host in lost else len(host.actors),
                "started": host.started,
                "lost": int(host in lost and not host.leaves),
                "left": int(bool(host.leaves)),
                "traffic_bytes": host.traffic_bytes + sum(map(self._traffic_bytes, host.actors)),
                "round_trip_s": min(host.trips_s, default=0.0),
            }
            for host in (*self._hosts.values(), *lost)
        }
        before = [one for one in self._summary.items() if one[0] not in now]
        self._summary = {**dict(before[-_MOST_HOSTS:]), **now}

    def _log_loss(self, host: _Host, why: str, level: int = logging.WARNING) -> None:
        ids = ", ".join(str(peer.actor_id) for peer in host.actors)
        then = (
            f"; its actors ({ids}) start again as soon as a host has room for them" if ids else ""
        )
        self._note("host %s %s%s", host.name, why, then, level=level)

    def _note(self, words: str, *of: object, level: int = logging.WARNING) -> None:
        """Log a line, unless there were many of its kind just before."""
        before, now = self._noted[words], self._clock()
        if len(before) < _MOST_LINES or now - before[0] > _LINES_S:
            before.append(now)
            _log.log(level, words, *of)

    def _speak(self) -> None:
        for who, host in self._hosts.items():
            if host.talk.has_news:
                self._port.send(who, host.talk.message())

    def _remind(self) -> None:
        """Log at growing intervals which actors the run waits for."""
        if self._waits_since is None:
            self._waits_since = self._clock()
        if self._begun or self._clock() - self._waits_since < self._reminder_s:
            return
        self._reminder_s *= 2
        there = ", ".join(f"{host.name}: {host.room}" for host in self._hosts.values())
        room = sum(host.room for host in self._hosts.values())
        _log.warning(
            "waiting for hosts: %s; %d of %d actors are missing",
            f"room for {room} actors has joined ({there})" if there else "none has joined",
            self._least - room,
            self._least,
        )
