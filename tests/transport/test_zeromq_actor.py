"""Connections that stall, break and come back: all experience arrives, once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from asyncrl.core.errors import Refused
from asyncrl.core.messages import (
    ActorReport,
    EnvChange,
    EvaluationReport,
    Experience,
    Message,
    ModelInfo,
    Peer,
)
from asyncrl.fleet.ledger import Ledger
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_actor import ZmqActorLink
from benchmarks.proxy import Proxy
from tests.support.helpers import wait_until
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_evaluation,
    make_experience,
    make_hello,
    make_model,
    make_peer,
    make_report,
)

CONFIG = ZmqTransportConfig(window=4, request_interval_s=0.05, heartbeat_interval_s=0.1)
DEADLINE_S = 60.0
EVALUATOR = make_peer(7)


class Line:
    """A learner, an actor, and a proxy between them."""

    def __init__(self) -> None:
        transport = ZmqTransport.tcp("tcp://127.0.0.1", schema=SCHEMA, config=CONFIG)
        self.learner = transport.listen()
        self.proxy = Proxy(int(self.admit(PEER).endpoint.rpartition(":")[2]))
        self.ledger = Ledger()
        self.received: list[Message] = []
        self.seqs: list[int] = []
        self.actor = self.connect(PEER)
        self.sent = 0
        self.reported = 0

    def admit(self, peer: Peer) -> ZmqTransport:
        transport = self.learner.admit(peer, evaluates=peer == EVALUATOR)
        assert isinstance(transport, ZmqTransport)
        return transport

    def connect(self, peer: Peer) -> ZmqActorLink:
        actor = replace(self.admit(peer), endpoint=f"tcp://127.0.0.1:{self.proxy.port}").connect(
            peer
        )
        actor.hello(make_hello(peer))
        return actor

    def turn(self) -> None:
        """Let both ends work a little."""
        if self.actor.send(make_experience(self.sent + 1), 0.0):
            self.sent += 1
        self.take()

    def take(self) -> None:
        """Let the learner receive and acknowledge what has come."""
        for message in self.learner.poll(0.002):
            self.received.append(message)
            if isinstance(message, Experience) and message.peer == PEER:
                self.seqs.append(message.seq)
                self.ledger.on_received(
                    message.peer,
                    transitions=message.transitions,
                    produced=message.produced,
                    env_steps=message.env_steps,
                )
                self.ledger.on_stored(message.transitions)
                self.learner.acknowledge(message.peer, message.seq)

    def until_seq(self, seq: int) -> None:
        """Work until so much experience has arrived."""
        wait_until(
            lambda: self.turn() or len(self.seqs) >= seq,
            DEADLINE_S,
            f"message {seq}; {self.learner.counters}, {self.sent} sent",
        )

    def until_sent(self, report: ActorReport) -> None:
        """Work until the actor is rid of a report."""
        wait_until(lambda: self.take() or self.actor.send(report, 0.0), DEADLINE_S, "a report")

    def evaluations(self) -> list[EvaluationReport]:
        return [m for m in self.received if isinstance(m, EvaluationReport)]

    def check(self) -> None:
        """Check that all has come that was sent: once, in order, and in the balance."""
        wait_until(lambda: self.take() or self.actor.drain(0.0), DEADLINE_S, "the end")
        assert self.seqs == list(range(1, self.sent + 1))
        balance = self.ledger.balance()
        assert balance.produced == balance.stored
        assert balance.in_flight == balance.lost == 0
        reports = [m for m in self.received if isinstance(m, ActorReport)]
        assert [m.seq for m in reports] == list(range(1, self.reported + 1))
        assert [m.produced for m in reports] == [m.seq for m in reports]

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
def test_nothing_is_lost_or_doubled_when_connections_break(line: Line, cuts: int) -> None:
    """In the middle of messages, handshakes, acknowledgements, reports of an actor among them."""
    chance = random.Random(cuts)
    while line.proxy.cuts < cuts:
        line.proxy.cut(chance.choice([0, chance.randrange(1, 20_000)]))
        for _ in range(chance.randrange(4)):
            line.until_sent(make_report(produced=line.reported + 1))
            line.reported += 1
            line.turn()
        line.until_seq(len(line.seqs) + chance.randrange(1, 20))
    line.check()


def until_credit_ends(line: Line) -> None:
    wait_until(
        lambda: line.turn() or line.sent - line.actor._acknowledged >= CONFIG.window,
        DEADLINE_S,
        "the actor to have spent its credit",
    )
    assert line.sent - len(line.seqs) <= CONFIG.window


@pytest.mark.fault("F28")
def test_a_connection_that_died_unseen_is_given_up_and_rebuilt(line: Line) -> None:
    """As after a partition that dropped messages in transit: no side gets an error."""
    line.until_seq(5)
    line.proxy.swallowing.set()
    until_credit_ends(line)
    cuts_before = line.learner._connections.counts["disconnected"]
    wait_until(
        lambda: line.turn() or line.learner._connections.counts["disconnected"] > cuts_before,
        DEADLINE_S,
        "the heartbeat to notice",
    )
    line.proxy.swallowing.clear()
    line.proxy.cut()
    line.until_seq(line.sent + 20)
    line.check()


@pytest.mark.fault("F28", "F26")
def test_an_actor_that_was_replaced_meanwhile_stays_out(line: Line) -> None:
    line.until_seq(5)
    line.proxy.stalled.set()
    until_credit_ends(line)
    arrived = list(line.seqs)
    line.learner.revoke(PEER)
    after = make_peer(incarnation=1)
    successor = line.admit(after).connect(after)
    successor.hello(make_hello(after))
    wait_until(
        lambda: line.take() or successor.send(make_experience(1, after), 0.0),
        DEADLINE_S,
        "the successor to be let in",
    )
    line.proxy.stalled.clear()

    with pytest.raises(Refused, match="incarnation 1"):
        wait_until(lambda: line.take() or line.actor.stopping(), DEADLINE_S, "word of it")
    assert line.seqs == arrived
    successor.close()


@pytest.mark.fault("F31", "F28")
def test_a_model_sent_into_a_dead_connection_is_sent_again(line: Line) -> None:
    """To an actor that sends nothing, and only waits for it. So is a change of environments."""
    wait_until(lambda: line.take() or line.actor.hello(make_hello()), DEADLINE_S, "entry")
    for version in range(1, 4):
        came: list[ModelInfo] = []

        def have_come(version: int = version, came: list[ModelInfo] = came) -> bool:
            line.take()
            model = line.actor.latest_model("act", version - 1)
            came += [model] if model else []
            return line.actor.env_change(version - 1) is not None and bool(came)

        wait_until(
            lambda: have_come() or len(line.learner._requests) == 2, DEADLINE_S, "two requests"
        )
        line.proxy.swallowing.set()
        line.learner.publish(make_model(version), "act")
        line.learner.change_env(EnvChange(number=version))
        line.take()
        assert not line.learner._requests, "they were sent"
        line.proxy.cut()
        line.proxy.swallowing.clear()
        wait_until(have_come, DEADLINE_S, f"model {version} and change {version}")


@pytest.mark.fault("F28")
def test_a_grant_that_was_lost_is_requested_again(line: Line) -> None:
    wait_until(lambda: line.take() or line.actor.hello(make_hello()), DEADLINE_S, "entry")
    for seq in (1, 2):
        line.proxy.swallowing.set()
        line.learner.acknowledge(PEER, 0, seq)
        line.take()
        line.proxy.cut()
        line.proxy.swallowing.clear()
        wait_until(
            lambda seq=seq: line.take() or line.actor.may_begin(seq), DEADLINE_S, f"message {seq}"
        )


@pytest.mark.fault("F31")
def test_the_request_to_finish_is_repeated(line: Line) -> None:
    line.until_seq(1)
    line.proxy.stalled.set()
    line.learner.stop_actors()
    line.learner.poll(0.0)
    line.proxy.cut()
    line.proxy.stalled.clear()
    wait_until(
        lambda: line.turn() or line.actor.latest_model("act", -1) or line.actor.stopping(),
        DEADLINE_S,
        "the actor to hear that it shall finish",
    )


@pytest.mark.fault("F32")
def test_an_evaluation_that_was_lost_is_reported_again(line: Line) -> None:
    """By an evaluator, which sends nothing else, and only waits for its next model."""
    evaluator = line.connect(EVALUATOR)
    wait_until(lambda: line.take() or evaluator.hello(make_hello(EVALUATOR)), DEADLINE_S, "entry")
    for version in range(5):
        line.proxy.swallowing.set()
        assert evaluator.send(make_evaluation(EVALUATOR, version, 1.5 * version), 0.0)
        line.proxy.cut()
        line.proxy.swallowing.clear()

        def has_heard(version: int = version) -> bool:
            line.take()
            assert evaluator.latest_model("evaluate", version) is None
            return len(line.evaluations()) > version

        wait_until(has_heard, DEADLINE_S, f"score {version}")
    assert [r.score for r in line.evaluations()] == [0.0, 1.5, 3.0, 4.5, 6.0]
    wait_until(lambda: line.take() or evaluator.drain(0.0), DEADLINE_S, "the end")
    evaluator.close()


@pytest.mark.behaviour(number=23)
def test_unread_reports_are_bounded(line: Line) -> None:
    line.until_seq(1)
    line.proxy.stalled.set()
    while line.actor.send(make_report(produced=line.reported + 1), 0.0):
        line.reported += 1
        assert line.reported <= 1000
    line.proxy.stalled.clear()
    line.reported += 1
    line.until_sent(make_report(produced=line.reported))
    line.check()
