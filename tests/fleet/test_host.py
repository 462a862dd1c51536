"""A host that serves its learner, loses it, and leaves it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from asyncrl.core.errors import ConfigError, Refused, TransportError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import Spec
from asyncrl.core.messages import Peer
from asyncrl.fleet import host
from asyncrl.fleet.host import Host, HostTimeouts
from asyncrl.fleet.host_messages import Conversation, decode, encode
from asyncrl.fleet.threads import ThreadLauncher
from tests.fleet import bodies

TIMEOUTS = HostTimeouts(first_answer_s=60.0, learner_s=30.0, stop_s=5.0)


class Line:
    """A learner that answers each message; a test says what."""

    def __init__(self) -> None:
        self.talk = Conversation()
        self.talk.say(welcome={"run": "r"})
        self.heard: list[Any] = []
        self.reports: list[Any] = []
        self.echoes: list[Any] = []
        self.answers = True
        self.raw: list[bytes] = []
        self.on_turn = lambda: None
        self._inbox: list[bytes] = []

    def receive(self, timeout_s: float) -> list[bytes]:
        self.on_turn()
        time.sleep(timeout_s)  # as a socket on which nothing arrives
        arrived, self._inbox = self._inbox + self.raw, []
        return arrived

    def send(self, data: bytes) -> None:
        message = decode(data)
        self.heard += self.talk.take(message)
        self.reports = message["actors"]
        self.echoes.append(message["echo"])
        if self.answers:
            self._inbox.append(self.talk.message(at=float(len(self.echoes))))

    def why_silent(self) -> str:
        return "it is reachable, but busy or stopped"

    def close(self) -> None: ...

    @property
    def exits(self) -> list[Any]:
        return [item for item in self.heard if "ended" in item]


class Site:
    """A host whose actors are threads."""

    def __init__(self, launcher: ThreadLauncher) -> None:
        self.line = Line()
        self.now_s: float = 0.0
        self.offered = 0
        self.interrupter = Interrupter()
        self.host = Host(
            launcher,
            self.line,
            {"host": "n1", "room": 2},
            self.make,
            TIMEOUTS,
            offer_key=self.offer_key,
            clock=self.clock,
        )

    def offer_key(self) -> str:
        self.offered += 1
        return f"key {self.offered}"

    def clock(self) -> float:
        self.now_s += 0.05
        return self.now_s

    def make(self, peer: Peer, welcome: Any, order: Any) -> Spec:
        assert welcome == {"run": "r"}
        if order["body"] == "none":
            raise ConfigError("the environment does not exist here")
        return bodies.Runs(getattr(bodies, order["body"]))

    def launch(self, body: str, actor_id: int = 0) -> None:
        self.line.talk.say(launch=[actor_id, 0], order={"body": body})

    def then(self, *steps: Any) -> None:
        """Take each step when the one before returns something true."""
        left = list(steps)

        def turn() -> None:
            while left and left[0]():
                left.pop(0)

        self.line.on_turn = turn

    def end(self) -> bool:
        self.line.talk.say(end="the run has ended")
        return True


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(host, "_TURN_S", 0.001)
    with ThreadLauncher() as launcher:
        yield Site(launcher)


def test_it_serves_until_the_run_ends(site: Site) -> None:
    site.launch("returns")
    site.then(lambda: site.line.exits, site.end)
    assert site.host.run(site.interrupter) == "ended"
    assert site.line.heard[0] == {"join": {"host": "n1", "room": 2}}
    keys = [item["keys"] for item in site.line.heard if "keys" in item]
    assert keys == [["key 1", "key 2"], ["key 3"]], "one for each place, and after each exit"
    (ended,) = site.line.exits
    assert (ended["ended"], ended["code"], ended["last"]) == ([0, 0], 0, [2, 9, 0, 0])
    assert site.line.talk.is_acknowledged, "the learner does not wait for it"
    (none, _), *echoes = site.line.echoes
    assert none is None
    assert [sent for sent, _ in echoes] == [1.0 + i for i in range(len(echoes))]
    assert all(held_s > 0 for _, held_s in echoes)


def test_it_reports_finishes_and_kills(site: Site) -> None:
    site.launch("finishes", 0)
    site.launch("waits", 1)
    site.then(
        lambda: {tuple(report[0]) for report in site.line.reports} == {(0, 0), (1, 0)},
        lambda: all(report[1][0] for report in site.line.reports),
        lambda: site.line.talk.say(finish=[0, 0]) is None,
        lambda: len(site.line.exits) == 1,
        lambda: site.line.talk.say(kill=[1, 0], stacks=True) is None,
        lambda: len(site.line.exits) == 2,
        site.end,
    )
    assert site.host.run(site.interrupter) == "ended"
    first, second = site.line.exits
    assert (first["ended"], first["code"]) == ([0, 0], 0)
    assert (second["ended"], second["code"]) == ([1, 0], -9)
    assert "in forever" in second["text"]


def test_an_actor_that_cannot_be_built_here_is_an_exit(site: Site) -> None:
    site.launch("none")
    site.then(lambda: site.line.exits, site.end)
    site.host.run(site.interrupter)
    (ended,) = site.line.exits
    assert ended["error"] == "ConfigError: the environment does not exist here"
    assert (ended["code"], ended["began"]) == (1, False)


def test_a_silent_learner_ends_the_host(site: Site) -> None:
    site.launch("waits")

    def falls_silent() -> bool:
        site.line.answers = False
        return True

    def time_passes() -> bool:
        site.now_s += 0.5
        return False

    site.then(lambda: site.line.reports, falls_silent, time_passes)
    with pytest.raises(TransportError, match=r"not been heard for 3\d s.*reachable, but busy"):
        site.host.run(site.interrupter)


def test_a_host_that_slept_gives_its_learner_time(site: Site) -> None:
    site.launch("waits")

    def sleeps() -> bool:
        site.now_s += 3600.0
        return True

    site.then(lambda: site.line.reports, sleeps, site.end)
    assert site.host.run(site.interrupter) == "ended"


def test_a_refusal_differs_from_a_loss(site: Site) -> None:
    site.line.raw = [encode({"lost": "not heard"})]
    assert site.host.run(site.interrupter) == "lost"
    site.line.raw = [encode({"refused": "other versions"})]
    facts, offer_key = {"host": "n1", "room": 1}, site.offer_key
    again = Host(ThreadLauncher(), site.line, facts, site.make, TIMEOUTS, offer_key=offer_key)
    with pytest.raises(Refused, match="other versions"):
        again.run(site.interrupter)


def test_a_host_that_is_asked_to_leave_lets_its_actors_finish(site: Site) -> None:
    site.launch("finishes")
    site.then(
        lambda: site.line.reports and site.line.reports[0][1][0],
        lambda: site.interrupter.stop("interrupted by SIGTERM") is None,
    )
    assert site.host.run(site.interrupter) == "left"
    assert {"leaves": "interrupted by SIGTERM"} in site.line.heard
    assert [ended["code"] for ended in site.line.exits] == [0]
