"""Which actors may act now. Pure bookkeeping: knows no sockets, no threads, no buffer.

An actor acts for one message of experience after the other, and begins one when it is wanted. So a
learner that is the slower side stops actors from acting, not from sending: what they make is made
with the newest model, and stored as it comes.

Messages are wanted as far as the limiter has room for them. A learner that waits for experience
wants at least one from each actor, whatever others owe: a slow actor keeps nobody waiting. It wants
more as they come, since what is on its way must cover the round trip: up to the window, one more
for each message that could be stored at once, half as many when one had to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from asyncrl.core.messages import Peer


@dataclass(slots=True)
class _Life:
    received: int = 0
    wanted: int = 0

    @property
    def ahead(self) -> int:
        """Messages that it may make, or has made, and that have not come."""
        return max(0, self.wanted - self.received)


class Demand:
    """What each living actor is asked for.

    Args:
        message: Transitions of a full message.
        window: Messages that an actor may be ahead at the most.
    """

    def __init__(self, message: int, window: int) -> None:
        self._message = message
        self._window = window
        self._lives: dict[Peer, _Life] = {}
        self._surplus = 1.0

    @property
    def outstanding(self) -> int:
        """Messages that are wanted and have not come."""
        return sum(life.ahead for life in self._lives.values())

    @property
    def idle(self) -> bool:
        """Whether there are actors, and none of them may act."""
        return bool(self._lives) and not self.outstanding

    @property
    def somebody_waits(self) -> bool:
        """Whether there is an actor that may not act."""
        return any(not life.ahead for life in self._lives.values())

    @property
    def next_needs(self) -> float:
        """Room in transitions that one more message needs; infinite if nobody could make one."""
        if all(life.ahead >= self._window for life in self._lives.values()):
            return float("inf")
        return float((self.outstanding + 1) * self._message)

    def on_arrival(self, peer: Peer) -> None:
        """Note that an actor is there, in place of its earlier lives."""
        if peer not in self._lives:
            for other in [p for p in self._lives if p.actor_id == peer.actor_id]:
                del self._lives[other]
            self._lives[peer] = _Life()

    def on_end(self, peer: Peer) -> None:
        """Note that an actor is gone, with what it was asked for."""
        self._lives.pop(peer, None)

    def on_received(self, peer: Peer, seq: int, *, at_once: bool | None) -> None:
        """Note that a message has come, and whether it can be stored at once.

        None while that says nothing of the learner's speed, as during warm-up.
        """
        if life := self._lives.get(peer):
            life.received = max(life.received, seq)
        if at_once is None:
            return
        if at_once:
            self._surplus = min(self._window, self._surplus + 1 / max(1, len(self._lives)))
        else:
            self._surplus = max(1.0, self._surplus / 2)

    def new(self, room: float, *, hungry: bool) -> Iterator[tuple[Peer, int]]:
        """Yield who may make which message now, in turn; those that are least ahead come first.

        Args:
            room: Transitions that may be stored, beside those that have come and are not.
            hungry: Whether the learner waits for experience, or soon will.
        """
        total = self.outstanding
        surplus = int(self._surplus) if hungry else 0
        while self._lives:
            peer = min(self._lives, key=lambda p: self._lives[p].ahead)
            life = self._lives[peer]
            fits = room >= (total + 1) * self._message
            if life.ahead >= self._window or not (fits or life.ahead < surplus):
                return
            life.wanted = max(life.wanted, life.received) + 1
            total += 1
            self._lives[peer] = self._lives.pop(peer)  # behind the others
            yield peer, life.wanted
