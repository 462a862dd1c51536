"""Credit-based flow control: which actors may collect a message of experience now.

A grant allows an actor to act for one more message. So a slow learner stops actors before they act,
not before they send: they act with the newest model, and the learner stores what arrives at once.

The limiter's room bounds the outstanding grants. A starved learner, one that waits for experience,
grants at least one message to each actor, whatever is outstanding from others: a slow actor blocks
no other. To cover the round trip it grants more, up to the window: one more per actor each time
that every actor has sent a message that could be stored on arrival, half as many after a message
that had to wait. Knows no sockets, no threads and no buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from asyncrl.core.messages import Peer


@dataclass(slots=True)
class _Account:
    received: int = 0
    granted: int = 0

    @property
    def outstanding(self) -> int:
        """Messages that are granted and have not arrived."""
        return max(0, self.granted - self.received)


class Grants:
    """The messages granted to each running actor.

    Args:
        message: Transitions of a full message.
        window: Maximum number of outstanding messages of an actor.
    """

    def __init__(self, message: int, window: int) -> None:
        self._message = message
        self._window = window
        self._accounts: dict[Peer, _Account] = {}
        self._surplus = 1.0

    @property
    def outstanding(self) -> int:
        """Messages that are granted and have not arrived."""
        return sum(account.outstanding for account in self._accounts.values())

    @property
    def all_blocked(self) -> bool:
        """Whether there are actors, and none of them may act."""
        return bool(self._accounts) and not self.outstanding

    @property
    def any_blocked(self) -> bool:
        """Whether there is an actor that may not act."""
        return any(not account.outstanding for account in self._accounts.values())

    @property
    def room_for_next(self) -> float:
        """Room in transitions that the next grant needs; infinite if all windows are full."""
        if all(account.outstanding >= self._window for account in self._accounts.values()):
            return float("inf")
        return float((self.outstanding + 1) * self._message)

    def on_arrival(self, peer: Peer) -> None:
        """Add an actor. It replaces the earlier incarnations of the same actor."""
        if peer not in self._accounts:
            for other in [p for p in self._accounts if p.actor_id == peer.actor_id]:
                del self._accounts[other]
            self._accounts[peer] = _Account()

    def on_end(self, peer: Peer) -> None:
        """Remove an actor together with its outstanding grants."""
        self._accounts.pop(peer, None)

    def on_received(self, peer: Peer, seq: int, *, at_once: bool | None) -> None:
        """Count a message that arrived; `at_once` says whether it can be stored without waiting.

        `at_once` is None if that says nothing about the learner's speed, as during warm-up.
        """
        if account := self._accounts.get(peer):
            account.received = max(account.received, seq)
        if at_once is None:
            return
        if at_once:
            self._surplus = min(self._window, self._surplus + 1 / max(1, len(self._accounts)))
        else:
            self._surplus = max(1.0, self._surplus / 2)

    def issue(self, room: float, *, starved: bool) -> Iterator[tuple[Peer, int]]:
        """Yield new grants: an actor and the number of the message that it may collect.

        The actor with the fewest outstanding messages comes first; among equals they take turns.

        Args:
            room: Transitions that may still be stored, beyond those that wait to be stored.
            starved: Whether the learner waits for experience, or soon will.
        """
        total = self.outstanding
        surplus = int(self._surplus) if starved else 0
        while self._accounts:
            peer = min(self._accounts, key=lambda p: self._accounts[p].outstanding)
            account = self._accounts[peer]
            fits = room >= (total + 1) * self._message
            if account.outstanding >= self._window or not (fits or account.outstanding < surplus):
                return
            account.granted = max(account.granted, account.received) + 1
            total += 1
            self._accounts[peer] = self._accounts.pop(peer)  # behind the others
            yield peer, account.granted
