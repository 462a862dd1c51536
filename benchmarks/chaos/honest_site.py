"""A learner with one honest actor, in one thread, while others do what they should not."""

from __future__ import annotations

import time
from collections.abc import Callable

from asyncrl.core.messages import Experience, Peer
from asyncrl.transport.zeromq import ZmqTransport
from benchmarks.chaos.intruders import admitted
from tests.support.sample_messages import make_experience, make_hello

_DEADLINE_S = 30.0


class HonestSite:
    """Counts what is handed on of anybody but the honest actor."""

    def __init__(self, transport: ZmqTransport, peer: Peer) -> None:
        """Listen, and let the actor in."""
        self.learner = transport.listen()
        self.here = admitted(self.learner, peer)
        self.strangers: list[Peer] = []
        """Of each message that was handed on and is not of the honest actor."""
        self._peer = peer
        self._actor = self.here.connect(peer)
        self._actor.hello(make_hello(peer))
        self._sent = 0
        try:
            self.works()
        except TimeoutError:
            self.close()
            raise

    def works(self) -> None:
        """See that the honest actor gets a message through."""
        self._sent += 1
        message = make_experience(self._sent, self._peer)
        self.until(lambda: self._actor.send(message, 0.0), "credit for the honest actor")
        self.until(lambda: self._actor.drain(0.0), "its message to be acknowledged")

    def counted(self, reason: str) -> int:
        """Return how often something was refused for a reason."""
        return self.learner.counters.get(reason, 0)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take in what comes until something holds."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {what}; {self.learner.counters}")
            for message in self.learner.poll(0.005):
                if message.peer != self._peer:
                    self.strangers.append(message.peer)
                elif isinstance(message, Experience):
                    self.learner.acknowledge(self._peer, message.seq)

    def close(self) -> None:
        """Let go of both ends."""
        self._actor.close()
        self.learner.close()
