"""Connections that stall, break and come back: each ends an incarnation, and all is counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from asyncrl.core.errors import ConnectionLost, Refused
from asyncrl.core.messages import ActorReport, Experience, Peer
from asyncrl.fleet.ledger import Ledger
from asyncrl.transport import zeromq_actor
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from benchmarks.proxy import Proxy
from tests.support.helpers import wait_until
from tests.support.sample_messages import (
    SCHEMA,
    make_experience,
    make_hello,
    make_peer,
    make_report,
)

CONFIG = ZmqTransportConfig(window=4, heartbeat_interval_s=0.1)
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let actors look after their connection in each call."""
    monkeypatch.setattr(zeromq_actor, "_LOOK_S", 0.0)


class Line:
    """A learner, the incarnations of an actor one after the other, and a proxy between them."""

    def __init__(self) -> None:
        transport = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=CONFIG)
        self.learner = transport.listen()
        self.proxy = Proxy()
        self.ledger = Ledger()
        self.seqs: dict[Peer, list[int]] = {}
        self.reports: dict[Peer, list[int]] = {}
        self.peer = make_peer()
        self.actor = self.connect(self.peer)
        self.sent = self.reported = 0

    def connect(self, peer: Peer) -> ZmqActorLink:
        here = self.learner.admit(peer)
        assert isinstance(here, ZmqTransport)
        self.proxy.server_port = int(here.endpoint.rpartition(":")[2])
        actor = replace(here, endpoint=f"tcp://127.0.0.1:{self.proxy.port}").connect(peer)
        actor.hello(make_hello(peer))
        self.seqs[peer], self.reports[peer] = [], []
        return actor

    def begin_next(self) -> None:
        """Do what a manager does after the end of an actor."""
        self.actor.close()
        self.learner.revoke(self.peer)
        self.ledger.on_ended(self.peer, produced=make_experience(self.sent).produced)
        self.peer = make_peer(incarnation=self.peer.incarnation + 1)
        self.actor = self.connect(self.peer)
        self.sent = self.reported = 0

    def turn(self) -> None:
        """Let both ends work a little."""
        if self.actor.send(make_experience(self.sent + 1, self.peer), 0.0):
            self.sent += 1
        self.take()

    def take(self) -> None:
        """Let the learner receive and acknowledge what has come."""
        for message in self.learner.poll(0.002):
            if isinstance(message, ActorReport):
                self.reports[message.peer].append(message.seq)
            if isinstance(message, Experience):
                self.seqs[message.peer].append(message.seq)
                self.ledger.on_received(
                    message.peer,
                    transitions=message.transitions,
                    produced=message.produced,
                    env_steps=message.env_steps,
                )
                self.ledger.on_stored(message.transitions)
                self.learner.acknowledge(message.peer, message.seq)

    def until_seq(self, seq: int) -> None:
        """Work until so much experience of this incarnation has arrived."""
        wait_until(
            lambda: self.turn() or len(self.seqs[self.peer]) >= seq,
            DEADLINE_S,
            f"message {seq}; {self.learner.counters}, {self.sent} sent",
        )

    def until_lost(self, work: Callable[[], object]) -> None:
        """Work until the actor notices that its connection broke."""
        with pytest.raises(ConnectionLost, match=r"^the connection to the learner at "):
            wait_until(lambda: self.take() or (work() and False), DEADLINE_S, "the loss")

    def until_given_up(self) -> None:
        """Work until the learner's heartbeat has noticed it."""
        wait_until(
            lambda: self.take() or self.learner._connections.is_broken, DEADLINE_S, "a heartbeat"
        )

    def close(self) -> None:
        self.actor.close()
        self.learner.close()
        self.proxy.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


@pytest.mark.fault("F32", "F28")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cuts", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_all_is_accounted_for_and_nothing_doubled_when_connections_break(
    line: Line, cuts: int
) -> None:
    """In the middle of messages, handshakes, acknowledgements, reports of an actor among them."""
    chance = random.Random(cuts)
    while True:
        try:
            if line.proxy.cuts >= cuts:
                line.until_seq(1)
                wait_until(lambda: line.take() or line.actor.drain(0.0), DEADLINE_S, "the end")
                break
            line.proxy.cut(chance.choice([0, chance.randrange(1, 20_000)]))
            for _ in range(chance.randrange(4)):
                line.reported += line.actor.send(make_report(line.peer), 0.0)
                line.turn()
            line.until_seq(len(line.seqs[line.peer]) + chance.randrange(1, 20))
        except ConnectionLost:
            line.begin_next()
    for came in (*line.seqs.values(), *line.reports.values()):
        assert came == list(range(1, len(came) + 1))
    assert (len(line.seqs[line.peer]), len(line.reports[line.peer])) == (line.sent, line.reported)
    assert line.ledger.balance().in_flight == 0, "what was produced is stored or lost"
    assert line.peer.incarnation > 0


@pytest.mark.fault("F28")
def test_a_connection_that_died_unseen_is_given_up_by_both_ends(line: Line) -> None:
    """As after a partition that dropped messages in transit: no side gets an error."""
    line.until_seq(5)
    line.proxy.swallowing.set()
    line.until_lost(line.turn)
    assert line.sent - len(line.seqs[line.peer]) <= CONFIG.window
    line.until_given_up()
    line.begin_next()
    line.proxy.swallowing.clear()
    line.until_seq(5)


@pytest.mark.fault("F28", "F31")
@pytest.mark.parametrize(
    "call",
    [
        lambda actor: actor.may_begin(10, DEADLINE_S),
        lambda actor: actor.latest_model("evaluate", -1, DEADLINE_S),
        lambda actor: actor.drain(DEADLINE_S),
        lambda actor: actor.latest_model("act", -1),
        lambda actor: actor.stopping(),
    ],
    ids=["waits to act", "waits for a model", "waits for the end", "looks for models", "acts"],
)
def test_whatever_an_actor_does_it_notices_that_its_connection_broke(
    line: Line, call: Callable[[ZmqActorLink], object]
) -> None:
    line.until_seq(1)
    line.proxy.stalled.set()
    assert line.actor.send(make_report(line.peer), 0.0), "so that there is something to wait for"
    line.proxy.cut()
    line.until_lost(lambda: call(line.actor))


@pytest.mark.fault("F32")
def test_what_follows_a_loss_is_not_stored_before_the_actor_notices(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq_actor, "_LOOK_S", float("inf"))
    line.until_seq(1)
    wait_until(lambda: line.take() or line.actor.drain(0.0), DEADLINE_S, "all to arrive")
    arrived = list(line.seqs[line.peer])
    line.actor.stopping()
    line.proxy.swallowing.set()
    assert line.actor.send(make_experience(line.sent + 1, line.peer), 0.0)
    line.until_given_up()
    line.proxy.swallowing.clear()
    line.proxy.cut()  # or the next message might be swallowed with the old connection
    connections = line.actor._connections
    wait_until(lambda: connections.read() or connections.is_broken, DEADLINE_S, "the cut")
    assert line.actor.send(make_experience(line.sent + 2, line.peer), 0.0)
    wait_until(lambda: line.take() or line.learner.counters.get("after_gap"), DEADLINE_S, "a gap")
    assert line.seqs[line.peer] == arrived
    line.until_lost(line.turn)


@pytest.mark.fault("F28", "F26")
def test_an_actor_that_was_replaced_meanwhile_stays_out(line: Line) -> None:
    line.until_seq(5)
    line.proxy.stalled.set()
    for _ in range(2 * CONFIG.window):
        line.turn()
    arrived = list(line.seqs[line.peer])
    line.learner.revoke(line.peer)
    after = make_peer(incarnation=1)
    successor = line.learner.admit(after).connect(after)
    successor.hello(make_hello(after))
    line.seqs[after] = []
    wait_until(
        lambda: line.take() or successor.send(make_experience(1, after), 0.0),
        DEADLINE_S,
        "the successor to be let in",
    )
    line.proxy.stalled.clear()

    with pytest.raises((Refused, ConnectionLost), match=r"incarnation 1|broke"):
        wait_until(lambda: line.take() or line.actor.stopping(), DEADLINE_S, "word of it")
    wait_until(lambda: line.take() or line.seqs[after], DEADLINE_S, "the successor's experience")
    assert line.seqs[line.peer] == arrived
    successor.close()
