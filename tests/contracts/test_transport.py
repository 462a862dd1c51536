"""What every transport promises. Each test drives the learner's end in its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import Refused, TransportClosed
from asyncrl.core.messages import (
    ActorReport,
    EnvChange,
    EvaluationReport,
    Experience,
    Hello,
    Message,
    ModelInfo,
    Peer,
)
from asyncrl.core.transport import ActorLink
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_evaluation,
    make_experience,
    make_hello,
    make_model,
    make_peer,
    make_report,
    same,
)

WINDOW = 3
DEADLINE_S = 10.0
SOON_S = 0.02
FOREVER_S = 600.0  # beyond the time limit of a test


class Net:
    """A learner, and actors as they are asked for."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
        directory.chmod(0o700)
        self.transport: ZmqTransport = {
            "ipc": partial(ZmqTransport.ipc, directory),
            "loopback": ZmqTransport.loopback,
            "curve": partial(ZmqTransport.tcp, "tcp://127.0.0.1"),
        }[kind](schema=SCHEMA, config=ZmqTransportConfig(window=WINDOW))
        self.learner = self.transport.listen()
        self.actors: list[ActorLink] = []
        self.received: list[Message] = []

    def connect(self, peer: Peer = PEER, *, evaluates: bool = False) -> ActorLink:
        actor = self.learner.admit(peer, evaluates=evaluates).connect(peer)
        self.actors.append(actor)
        return actor

    def join(self, peer: Peer = PEER, *, evaluates: bool = False) -> ActorLink:
        """Connect an actor and let it in."""
        actor = self.connect(peer, evaluates=evaluates)
        actor.hello(make_hello(peer))
        self.until(lambda: Hello in self.kinds(peer))
        return actor

    def kinds(self, peer: Peer = PEER) -> list[type]:
        return [type(message) for message in self.received if message.peer == peer]

    def seqs(self, peer: Peer = PEER) -> list[int]:
        return [m.seq for m in self.received if isinstance(m, Experience) and m.peer == peer]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Let the learner work until a condition holds; return its value."""
        deadline = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not in time; received {self.received}"
            self.take(SOON_S)
        return value

    def take(self, timeout_s: float) -> None:
        """Let the learner work, and keep what it receives; a `Hello` said again says no more."""
        for message in self.learner.poll(timeout_s):
            if not isinstance(message, Hello) or Hello not in self.kinds(message.peer):
                self.received.append(message)

    def send(self, actor: ActorLink, message: Any) -> None:
        self.until(lambda: actor.send(message, 0.0))

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        self.learner.close()


@pytest.fixture(params=["ipc", "loopback", "curve"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def net(kind: str, tmp_path: Path) -> Iterator[Net]:
    net = Net(kind, tmp_path)
    yield net
    net.close()


def refusal(net: Net, actor: ActorLink) -> str:
    """Return why an actor has been turned away, once it has."""

    def reason() -> str:
        try:
            actor.stopping()
        except Refused as error:
            return str(error)
        return ""

    return str(net.until(reason))


def test_messages_arrive_whole_and_in_order(net: Net) -> None:
    actor = net.join()
    sent: list[Message] = [make_experience(1), make_report(), make_experience(2), make_report()]
    for message in sent:
        net.send(actor, message)
    net.until(lambda: len(net.received) == 5)
    sent[3] = make_report(seq=2)
    assert all(same(a, b) for a, b in zip(net.received, [make_hello(), *sent], strict=True))


def test_what_is_granted_may_be_begun_and_sent_beyond_the_window_and_not_more(net: Net) -> None:
    actor = net.join()
    assert not actor.may_begin(1, SOON_S)
    net.learner.acknowledge(PEER, 0, WINDOW + 2)
    net.until(lambda: actor.may_begin(WINDOW + 2))
    assert not actor.may_begin(WINDOW + 3, SOON_S)
    for seq in range(1, WINDOW + 3):
        net.send(actor, make_experience(seq))
    net.until(lambda: net.seqs() == [*range(1, WINDOW + 3)])
    assert not actor.send(make_experience(WINDOW + 3), SOON_S)
    net.learner.acknowledge(PEER, 1, 1)
    assert not actor.may_begin(WINDOW + 3, SOON_S)
    assert actor.may_begin(WINDOW + 2), "a grant is not taken back"


def test_a_window_of_messages_is_accepted_and_an_acknowledgement_gives_credit(net: Net) -> None:
    actor = net.join()
    for seq in range(1, WINDOW + 1):
        net.send(actor, make_experience(seq))
    net.until(lambda: net.seqs() == [1, 2, 3])
    assert not actor.send(make_experience(4), SOON_S)
    for _ in range(2 * WINDOW):
        assert actor.send(make_report(), 0.0), "reports need no credit"
    net.until(lambda: net.kinds().count(ActorReport) == 2 * WINDOW)
    assert not actor.send(make_experience(4), 0.0)
    net.learner.acknowledge(PEER, 2)
    assert actor.send(make_experience(4), DEADLINE_S)
    assert actor.send(make_experience(5), DEADLINE_S)
    assert not actor.send(make_experience(6), SOON_S)


def test_a_sender_that_waits_continues_when_it_gets_credit(net: Net) -> None:
    """A learner that is slower than its actor holds it back, and gets everything in order."""
    last, most_in_flight = 60, 0
    actor = net.join()

    def send_all() -> None:
        for seq in range(1, last + 1):
            assert actor.send(make_experience(seq), DEADLINE_S)

    thread = threading.Thread(target=send_all)
    thread.start()
    acknowledged = 0
    while acknowledged < last:
        net.until(lambda n=acknowledged: len(net.seqs()) > n)
        most_in_flight = max(most_in_flight, len(net.seqs()) - acknowledged)
        acknowledged += 1
        net.learner.acknowledge(PEER, acknowledged)
    thread.join(DEADLINE_S)
    assert net.seqs() == list(range(1, last + 1))
    assert most_in_flight <= WINDOW


def test_draining_waits_for_all_acknowledgements_and_until_reports_have_been_read(net: Net) -> None:
    actor = net.join()
    actor.send(make_report(), 0.0)
    assert not actor.drain(SOON_S)
    net.until(lambda: actor.drain(0.0))
    assert net.kinds() == [Hello, ActorReport]
    for seq in (1, 2):
        net.send(actor, make_experience(seq))
    net.until(lambda: net.seqs() == [1, 2])
    net.learner.acknowledge(PEER, 1)
    assert not actor.drain(SOON_S)
    net.learner.acknowledge(PEER, 2)
    net.until(lambda: actor.drain(0.0))


def test_a_late_joiner_gets_the_newest_model_and_never_an_older_one(net: Net) -> None:
    for version in (1, 2):
        net.learner.publish(make_model(version, value=version), "act")
    net.learner.publish(make_model(7), "evaluate")
    actor = net.join()
    assert same(net.until(lambda: actor.latest_model("act", -1)), make_model(2, value=2.0))
    assert net.until(lambda: actor.latest_model("evaluate", -1)).version == 7
    net.learner.publish(make_model(1), "act")
    net.learner.poll(SOON_S)
    assert actor.latest_model("act", 2, SOON_S) is None
    assert actor.latest_model("act", 5, SOON_S) is None
    net.learner.publish(make_model(4), "act")
    net.learner.poll(SOON_S)
    assert actor.latest_model("act", 5, SOON_S) is None
    net.learner.publish(make_model(6), "act")
    assert net.until(lambda: actor.latest_model("act", 5)).version == 6


def test_a_late_joiner_gets_the_newest_change_of_environments_and_no_older(net: Net) -> None:
    for number in (1, 2):
        net.learner.change_env(EnvChange(number=number, kwargs={"level": number}))
    actor = net.join()
    assert net.until(lambda: actor.env_change(0)) == EnvChange(number=2, kwargs={"level": 2})
    net.learner.change_env(EnvChange(number=1))
    assert actor.env_change(2) is None
    newest = EnvChange(number=3, kwargs={"wind": [0.5, None], "name": "é", "of": {"a": True}})
    net.learner.change_env(newest)
    assert net.until(lambda: actor.env_change(2)) == newest


def test_models_do_not_queue(net: Net) -> None:
    """However many were published meanwhile, at most one old model comes before the newest."""
    actor, versions = net.join(), [-1]
    actor.latest_model("act", -1)
    for version in range(100):
        net.learner.publish(make_model(version), "act")
        net.take(0.0)
    while versions[-1] < 99:
        versions.append(net.until(lambda: actor.latest_model("act", versions[-1])).version)
    assert len(versions) <= 3


@pytest.mark.behaviour(number=29)
def test_what_happens_to_the_arrays_after_publishing_is_not_seen(net: Net) -> None:
    params = {"w": np.zeros(4, np.float32)}
    model = make_model(1)
    net.learner.publish(ModelInfo(version=model.version, params=params), "act")
    params["w"][:] = 1.0
    actor = net.join()
    received = net.until(lambda: actor.latest_model("act", -1))
    assert (received.params["w"] == 0.0).all()
    assert not received.params["w"].flags.writeable


def test_early_and_late_actors_see_the_stop_and_may_send_their_tails(net: Net) -> None:
    early = net.join()
    assert not early.stopping()
    net.learner.stop_actors()
    net.until(early.stopping)
    late = net.join(make_peer(1))
    net.until(late.stopping)
    net.send(early, make_experience(1))
    net.send(early, make_report())
    net.until(lambda: net.kinds() == [Hello, Experience, ActorReport])


def test_a_refused_actor_reads_the_reason_and_is_not_heard(net: Net) -> None:
    actor = net.join()
    other = net.join(make_peer(1))
    assert actor.send(make_evaluation(), 5.0), "the learner, which reads later, has given credit"
    assert actor.send(make_experience(1), 5.0)
    net.until(lambda: net.learner.counters.get("refused") == 2)
    assert net.kinds() == [Hello]
    assert "evaluator" in refusal(net, actor)
    for call in (
        lambda: actor.send(make_experience(1), 0.0),
        lambda: actor.latest_model("act", -1),
        lambda: actor.drain(0.0),
    ):
        with pytest.raises(Refused, match="evaluator"):
            call()
    net.send(other, make_experience(1, make_peer(1)))


@pytest.mark.fault("F22")
@pytest.mark.parametrize("schema_hash", [SCHEMA.hash(), ""])
def test_evaluations_come_from_the_evaluator_only(net: Net, schema_hash: str) -> None:
    """Whatever it says in its hello: a score chooses the best model, and may end the run."""
    evaluator = net.join(make_peer(7), evaluates=True)
    actor = net.connect()
    actor.hello(Hello(peer=PEER, schema_hash=schema_hash))
    net.send(actor, make_evaluation())
    net.send(evaluator, make_evaluation(make_peer(7)))
    assert "evaluation" in refusal(net, actor)
    net.until(lambda: EvaluationReport in net.kinds(make_peer(7)))
    assert net.kinds() == [Hello]
    assert net.learner.counters["refused"] > 0


def test_an_earlier_incarnation_is_fenced(net: Net) -> None:
    before = net.join()
    net.send(before, make_experience(1))
    net.until(lambda: net.seqs() == [1])
    after = net.join(make_peer(incarnation=1))
    assert "incarnation 1" in refusal(net, before)
    net.learner.acknowledge(PEER, 1)
    net.send(after, make_experience(1, make_peer(incarnation=1)))
    net.until(lambda: net.seqs(make_peer(incarnation=1)) == [1])
    net.learner.revoke(make_peer(incarnation=1))
    third = make_peer(incarnation=2)
    net.send(net.join(third), make_experience(1, third))
    net.until(lambda: net.seqs(third) == [1])
    assert net.seqs() == [1]


@pytest.mark.fault("F16")
def test_an_actor_waits_for_a_learner_that_does_not_answer(net: Net) -> None:
    actor = net.connect()
    for _ in range(5):
        assert not actor.hello(make_hello(), 2 * SOON_S), "with each call, the time it was given"
    assert not actor.send(make_experience(1), SOON_S), "before it is let in"
    assert actor.latest_model("act", -1) is None
    assert net.received == []
    net.until(lambda: actor.hello(make_hello()))
    assert actor.hello(make_hello()), "a connected actor stays connected"
    net.send(actor, make_experience(1))
    net.until(lambda: 1 in net.seqs())
    assert set(net.kinds()) == {Hello, Experience}


def test_waking_many_times_ends_one_poll_and_a_message_the_next(net: Net) -> None:
    actor = net.join()
    for _ in range(1000):
        net.learner.wake()
    assert net.learner.poll(FOREVER_S) == []
    assert actor.send(make_report(), 0.0)
    assert [type(message) for message in net.learner.poll(FOREVER_S)] == [ActorReport]


def test_while_one_polls_others_may_publish_and_wake(net: Net) -> None:
    """The newest model is the one that stays, and experience flows meanwhile."""
    actor = net.join()
    versions: list[int] = []

    def disturb(start: int) -> None:
        for version in range(start, 200, 4):
            net.learner.publish(make_model(version), "act")
            net.learner.wake()

    threads = [threading.Thread(target=disturb, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()

    def take() -> bool:
        model = actor.latest_model("act", versions[-1] if versions else -1)
        versions.extend([] if model is None else [model.version])
        seq = len(net.seqs()) + 1
        net.send(actor, make_experience(seq))
        net.until(lambda: len(net.seqs()) == seq)
        net.learner.acknowledge(PEER, seq)
        return versions[-1:] == [199]

    net.until(take)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert versions == sorted(set(versions))
    assert net.seqs() == list(range(1, len(net.seqs()) + 1))
    assert net.learner.counters == {}


def test_closed_link_raises_and_leaves_nothing(net: Net) -> None:
    actor = net.join()
    for _ in range(2):
        net.close()
    assert list(net.directory.iterdir()) == []
    with pytest.raises(TransportClosed):
        actor.send(make_report(), 0.0)
    with pytest.raises(TransportClosed):
        actor.latest_model("act", -1)
    with pytest.raises(TransportClosed):
        net.learner.poll(0.0)
    net.learner.wake()
    net.learner.stop_actors()
    net.learner.publish(make_model(1), "act")
