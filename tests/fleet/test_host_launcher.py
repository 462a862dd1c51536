"""Hosts that come, go, hang and lie; by a port and a clock that the test moves."""

from __future__ import annotations

import logging
import math
from typing import Any
from unittest.mock import Mock

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ActorExit, Launcher, Place, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import MOST_ACTORS, ActorId
from asyncrl.fleet import host_launcher
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.host_launcher import HostLauncher
from asyncrl.fleet.host_messages import Conversation, decode, encode, plain_exit
from tests.support.sample_messages import make_peer as peer

ACTORS = 4


body = Mock(spec=Spec)
body.instructions.return_value = {"change": [0, {}]}


def this_machine() -> Mock:
    """Return a launcher that notes what is asked of it; who waits there does not hear hosts."""
    local = Mock(spec=Launcher)
    local.exits.side_effect = lambda timeout_s: {0.0: []}[timeout_s]
    local.has_room.return_value = True
    local.place.return_value = Place("here", 77)
    return local


class Stage:
    """A launcher, and the port that a test speaks through."""

    def __init__(self, **config: Any) -> None:
        self.actors = ACTORS
        self.now_s = 100.0
        self.reads = 0
        self.inbox: list[tuple[bytes, bytes]] = []
        self.outbox: list[tuple[bytes, bytes]] = []
        self.local = this_machine()
        self.objection = ""
        self.traffic_bytes = 0
        self.admitted: list[tuple[Peer, str]] = []
        self.taken: dict[str, Peer] = {}
        self.launcher = HostLauncher(
            self.local,
            self,
            config=HostsConfig(**{"min_actors": 0, "host_timeout_s": 10.0, **config}),
            admit=self.admit,
            objection_to_key=self.objection_to_key,
            objection=lambda _: self.objection,
            traffic_bytes=lambda _: self.traffic_bytes,
            welcome={"run": "r"},
            clock=lambda: self.now_s,
        )

    def has_room(self, actor_id: ActorId) -> bool:
        return self.launcher.has_room(actor_id, self.actors)

    def admit(self, peer: Peer, key: str) -> None:
        assert self.taken.setdefault(key, peer) == peer, "a key is for one actor"
        self.admitted.append((peer, key))

    def objection_to_key(self, key: str) -> str:
        if not key.startswith("of "):
            return f"{key!r} is no key"
        return f"{key!r} is taken" if key in self.taken else ""

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        self.now_s += timeout_s
        arrived, self.inbox = self.inbox, []
        return arrived

    def send(self, host: bytes, data: bytes) -> None:
        for _, item in decode(data).get("items", []):
            if "launch" in item:  # before the host learns of it
                assert item["order"]["key"] in [key for _, key in self.admitted]
        self.outbox.append((host, data))

    def look(self, seconds: float = 0.0, *, reads: bool = True) -> list[ActorExit]:
        """Let time pass in steps, and return who has ended."""
        ended: list[ActorExit] = []
        for _ in range(max(1, round(2 * seconds))):
            self.now_s += 0.5 if seconds else 0.0
            self.reads += reads
            ended += self.launcher.exits(0.0)
        gone = {one.peer for one in ended}
        self.taken = {key: peer for key, peer in self.taken.items() if peer not in gone}
        return ended


class HostSide:
    """What a host says and hears."""

    def __init__(
        self,
        stage: Stage,
        name: str = "n1",
        room: int = 2,
        *,
        program: bool = False,
        session: str = "",
    ) -> None:
        self.stage, self.id = stage, (session or name).encode()
        self.talk = Conversation()
        self.talk.say(join={"host": name, "room": room, **({"program": True} if program else {})})
        self.talk.say(keys=[f"of {self.id.decode()}, {number}" for number in range(room)])
        self.heard: list[Any] = []
        self.words: list[Any] = []
        self.say()

    def say(self, **more: Any) -> list[ActorExit]:
        self.stage.inbox.append((self.id, self.talk.message(**more)))
        ended = self.stage.look()
        self.listen()
        return ended

    def listen(self) -> None:
        for to, data in self.stage.outbox:
            message = decode(data)
            if to == self.id and "items" in message:
                self.heard += self.talk.take(message)
            elif to == self.id:
                self.words.append(message)
        self.stage.outbox = [each for each in self.stage.outbox if each[0] != self.id]


def working() -> tuple[Stage, HostSide]:
    """Return a host that runs an actor, and its stage."""
    stage = Stage()
    host = HostSide(stage)
    stage.launcher.launch(peer(), body)
    return stage, host


def test_actors_go_to_the_host_with_the_most_room() -> None:
    stage = Stage()
    assert not stage.has_room(ActorId(0))
    small, large = HostSide(stage, "small", 1), HostSide(stage, "large", 2)
    for actor_id in range(3):
        assert stage.has_room(ActorId(actor_id))
        stage.launcher.launch(peer(actor_id), body)
    assert not stage.has_room(ActorId(3)), "all are taken"
    with pytest.raises(ConfigError, match="has_room"):
        stage.launcher.launch(peer(3), body)
    for host in (small, large):
        host.listen()
    assert small.heard[0] == {"welcome": {"run": "r"}}
    orders = [item["launch"][0] for item in large.heard + small.heard if "launch" in item]
    assert sorted(orders) == [0, 1, 2]
    assert sum("launch" in item for item in large.heard) == 2


def test_processes_that_are_not_actors_stay_here() -> None:
    stage = Stage()
    for actor_id in (-1, MOST_ACTORS):
        assert stage.has_room(ActorId(actor_id))
        stage.launcher.launch(peer(actor_id), body)
        assert stage.launcher.progress(peer(actor_id)) is stage.local.progress.return_value
        assert stage.launcher.memory_bytes(peer(actor_id)) is stage.local.memory_bytes.return_value
        assert stage.launcher.place(peer(actor_id)) == Place("here", 77)
    assert stage.local.launch.call_count == 2


def test_each_actor_gets_another_of_the_keys_that_its_host_has_offered() -> None:
    stage = Stage()
    host = HostSide(stage, room=1)
    for incarnation in range(3):
        assert stage.has_room(ActorId(0))
        stage.launcher.launch(peer(0, incarnation), body)
        host.talk.say(**plain_exit(ActorExit(peer=peer(0, incarnation), code=0)))
        host.say()
        assert not stage.has_room(ActorId(0)), "without a key there is no place"
        host.talk.say(keys=[f"of n1, {incarnation + 1}", f"of n1, {incarnation}"])  # one again
        host.say()
    assert stage.admitted == [(peer(0, i), f"of n1, {i}") for i in range(3)]
    orders = [item["order"] for item in host.heard if "launch" in item]
    assert orders == [{"change": [0, {}], "key": f"of n1, {i}"} for i in range(3)]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ([7], "a public key must be a text, got 7"),
        ([["of n1, 9"]], "a public key must be a text, got ['of n1, 9']"),
        (["of n1, 9", "é"], "'é' is no key"),
        (["of n2, 0"], "'of n2, 0' is taken"),
        (["of n2, 2"], "the public key 'of n2, 2' is that of another host"),
        (["of n1, 8", "of n1, 9"], "it has offered more public keys than it has places, 2"),
    ],
)
def test_a_host_that_offers_a_key_of_another_or_none_is_refused_with_its_actors(
    keys: list[Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    host, other = HostSide(stage), HostSide(stage, "n2", 3)
    for actor_id in range(3):  # two on the other host, whose key 2 is not used yet
        stage.launcher.launch(peer(actor_id), body)
    before = list(stage.admitted)
    assert [key for _, key in before] == ["of n2, 0", "of n1, 0", "of n2, 1"]
    host.talk.say(keys=keys)
    (lost,) = host.say()
    assert host.words == [{"refused": why}]
    assert lost.peer == peer(1)
    assert lost.gone == f"host n1 was refused: {why}"
    assert f"host n1 was refused: {why}; its actors (1) start again" in caplog.text
    assert stage.admitted == before
    host.say()
    assert [*host.words[1]] == ["lost"]
    other.say()
    assert not other.words
    assert stage.has_room(ActorId(3)), "at the other host"


def test_a_silent_host_is_lost_with_its_actors(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    host, other = HostSide(stage), HostSide(stage, "n2", 1)
    stage.launcher.launch(peer(), body)
    host.say(actors=[[[0, 0], [3, 30, 0, 5], 1000, 7]])
    before = stage.launcher.progress(peer())
    for _ in range(9):
        other.say()
        assert stage.look(1.0) == []
    assert stage.launcher.progress(peer()) != before, "it cannot be known to hang"
    other.say()
    (lost,) = stage.look(2.0)
    assert (lost.peer, lost.code, lost.text, lost.last) == (peer(), 1, "", before)
    assert lost.gone == "host n1 was not heard for 10 s"
    assert "host n1 was not heard for 10 s; its actors (0) start again" in caplog.text
    assert stage.has_room(ActorId(0)), "at the other one"
    stage.launcher.launch(peer(0, 1), body)
    other.listen()
    assert other.heard[-1]["launch"] == [0, 1]
    host.talk.say(**plain_exit(ActorExit(peer=peer(), code=0)))
    assert host.say() == [], "it ended before"
    assert [*host.words[-1]] == ["lost"]


def test_no_host_is_lost_while_the_socket_is_not_read() -> None:
    stage, _ = working()
    assert stage.look(60.0, reads=False) == [], "the socket was not read"
    stage.now_s += 3600.0
    assert stage.look() == [], "this process was stopped"
    assert stage.look(12.0) != []


def test_a_host_that_leaves_takes_no_further_actor() -> None:
    stage, host = working()
    host.talk.say(leaves="interrupted by \x1b[2J\nSIGTERM")
    host.say()
    assert not stage.has_room(ActorId(1))
    host.talk.say(**plain_exit(ActorExit(peer=peer(), code=0)))
    (ended,) = host.say()
    assert ended.gone == "host n1 leaves the run: interrupted by SIGTERM"


def test_the_first_actor_waits_for_the_least_number(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(min_actors=None)
    HostSide(stage, "n1", 3)
    assert not stage.has_room(ActorId(0))
    stage.look(11.0)
    assert "room for 3 actors has joined (n1: 3); 1 of 4 actors are missing" in caplog.text
    assert "host n1 was not heard for 10 s" in caplog.text
    assert "its actors" not in caplog.text, "it had none"
    caplog.clear()
    HostSide(stage, "n2", 3)
    stage.look(9.5)
    assert "room for 3 actors has joined (n2: 3); 1 of 4" in caplog.text, "20 s after the start"
    HostSide(stage, "n3", 1)
    assert stage.has_room(ActorId(0))
    caplog.clear()
    stage.look(60.0)
    assert "missing" not in caplog.text
    HostSide(stage, "n4", 1)
    assert stage.has_room(ActorId(0)), "later any number will do"


def test_a_run_with_fewer_actors_than_declared_waits_for_no_more() -> None:
    """As after `set_actors(2)`, also in a run that is resumed after it."""
    stage = Stage(min_actors=3)
    stage.actors = 2
    HostSide(stage, "n1", 1)
    assert not stage.has_room(ActorId(0))
    HostSide(stage, "n2", 1)
    assert stage.has_room(ActorId(0))


def test_a_host_that_does_not_fit_is_refused_in_words(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.objection = "it runs\n \x1b[2Janother version\x9b0m"
    host = HostSide(stage, "\x07n1")
    assert host.words == [{"refused": "it runs another version0m"}]
    assert "host n1 is refused: it runs another version" in caplog.text
    assert not stage.has_room(ActorId(0))


def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stage, host = working()
    for words in (
        b"\xff",
        b"[]",
        encode({"heard": 0}),
        encode({"heard": 0, "items": [], "actors": 5}),
        encode({"heard": 0, "items": [], "actors": [[1]]}),
        encode({"heard": 0, "items": [], "actors": [[[0, 0], [1, 1, 0, 1], 10**400, 1]]}),
        *[b"{}"] * 99,
    ):
        stage.inbox.append((host.id, words))
    assert stage.look() == []
    assert len(caplog.records) == 50, "further lines of this kind are left out"
    stage.now_s += 11.0
    stage.inbox.append((host.id, b"[]"))
    assert stage.look() == []
    assert len(caplog.records) == 51
    stage.inbox.append((b"a stranger", encode({"heard": 0, "items": []})))
    stage.look()
    assert decode(stage.outbox[-1][1]) == {"lost": "the learner does not know this host"}
    assert host.say() == []


def test_close_asks_hosts_to_end_and_does_not_wait_for_the_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage()
    host = HostSide(stage)
    began = stage.now_s
    stage.launcher.close()
    stage.launcher.close()
    host.listen()
    assert host.heard[-1] == {"end": "the run has ended"}
    assert stage.now_s - began < 6.0
    assert stage.local.close.call_count == 2


def test_hosts_are_described() -> None:
    stage = Stage()
    stage.traffic_bytes = 7
    assert stage.launcher.hosts() == {}
    host = HostSide(stage, "n1", 2)
    stage.launcher.launch(peer(), body)
    stage.look()
    same = {"room": 2, "started": 1, "traffic_bytes": 7, "left": 0, "round_trip_s": 0.0}
    assert stage.launcher.hosts() == {"n1": {"actors": 1, "lost": 0, **same}}
    host.say()
    stage.look(11.0)
    assert stage.launcher.hosts() == {"n1": {"actors": 0, "lost": 1, **same}}
    HostSide(stage, "n1", session="the next")
    assert stage.launcher.hosts() == {"n1": {"actors": 0, "lost": 0, **same}}, "it is back"
    third = HostSide(stage, "n3")
    third.talk.say(leaves="it is Sunday")
    third.say()
    left = stage.launcher.hosts()["n3"]
    assert (left["lost"], left["left"]) == (0, 1)


def test_few_of_the_hosts_that_are_gone_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_launcher, "_MOST_HOSTS", 2)
    stage = Stage()
    for number in range(4):
        HostSide(stage, f"n{number}").talk.say(leaves="")
        stage.look(11.0)
    HostSide(stage, "there")
    assert [*stage.launcher.hosts()] == ["n2", "n3", "there"]


def test_round_trip_of_the_network_is_the_smallest_of_late() -> None:
    stage, host = working()

    def trip(trip_s: float) -> float:
        sent_at = stage.now_s
        stage.now_s += trip_s
        host.say(echo=[sent_at, 0.0])
        return stage.launcher.network_s(peer())

    for sent_at in (-math.inf, math.inf, -1e9):
        host.say(echo=[sent_at, 0.0])
        assert stage.launcher.network_s(peer()) == 0.0, "no such trip is possible"
    assert [trip(0.75), trip(0.5), trip(0.75)] == [0.75, 0.5, 0.5]
    assert [trip(1.0) for _ in range(16)][-1] == 1.0, "what was long ago is forgotten"
    assert stage.launcher.network_s(peer(1)) == 0.0, "on no host"
