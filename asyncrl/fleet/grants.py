"""Credit-based flow control: which actors may collect a message of experience now.

A grant allows an actor to act for one more message. So a slow learner stops actors before they act,
not before they send: they act with the newest model, and the learner stores what arrives at once.

A grant is due when the limiter has room for its message, or when the learner would consume all that
is stored and outstanding before that message arrives: the bandwidth-delay product, from the rate at
which the learner consumes and the round trip of a message, both measured. A starved learner, one
that waits for experience, grants at least one message to each actor, whatever is outstanding from
others: a slow actor blocks no other. It grants more, up to the window: one more per actor each time
that every actor has sent a message that could be stored on arrival, half as many after a message
that had to wait.

The window of an actor far away also covers the messages that it collects in a round trip of the
network. Knows nothing about sockets, threads and buffers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from asyncrl.core.messages import Peer

_INTERVAL_S = 0.25
"""Over which a rate is measured."""

_NEWEST = 0.2
"""Share of the newest measurement in a mean time."""

_MEASURED_EVERY = 128
"""Messages of an actor after which it gets no grant ahead until it has none left. The round trip is
then measured again, since it may have become longer. More with a wider window."""

_MOST_UNDER_WAY = 64
"""Messages that an actor far away may have outstanding, unless the settings allow more."""

_HEADROOM = 1.5
"""Factor of the messages in a round trip: so a window that limits the rate of its actor grows."""

_DECAY = 0.9
"""Of a peak, from one measurement to the next: a pause of the learner does not end its pace."""


class PeakRate:
    """The highest recent rate of a count."""

    def __init__(self) -> None:
        self._peak = 0.0
        self._count, self._since_s = 0.0, float("-inf")

    def update(self, count: float, now_s: float) -> float:
        """Return the rate per second, now that the count is this."""
        elapsed_s = now_s - self._since_s
        if elapsed_s >= _INTERVAL_S:
            self._peak = max((count - self._count) / elapsed_s, _DECAY * self._peak)
            self._count, self._since_s = count, now_s
        return self._peak


@dataclass(slots=True)
class _Account:
    peer: Peer

    window: int
    """Maximum number of outstanding messages."""

    turn: int
    """When it was granted the last message, or else arrived; a different number for each actor."""

    received: int = 0
    granted: int = 0
    granted_at: float | None = None
    """When the first of the outstanding messages was granted, if no other was outstanding then."""

    drains: bool = False
    """Whether it gets no grant ahead, so that the next one measures the round trip."""

    busy_since: float | None = None
    """When the last message arrived, if another one was outstanding then."""

    collecting_s: float = 0.0
    """Mean time between messages of an actor that never waits; 0 if unknown."""

    rate: PeakRate = field(default_factory=PeakRate)
    """Of its messages."""

    under_way: int = 0
    """Outstanding messages that cover a round trip of the network; 0 if unknown."""

    def arrived(self, now_s: float) -> None:
        """Measure how long this actor takes to collect a message."""
        if self.busy_since is not None:
            took_s = now_s - self.busy_since
            self.collecting_s = _mean(self.collecting_s, took_s)
        self.busy_since = now_s if self.outstanding else None

    def most_ahead(self, useful: int) -> int:
        """Return how many messages may be outstanding after a grant ahead."""
        return 1 if self.drains else max(useful, self.under_way)

    @property
    def outstanding(self) -> int:
        """Messages that are granted and have not arrived."""
        return max(0, self.granted - self.received)

    @property
    def has_room(self) -> bool:
        """Whether its window is not full."""
        return self.outstanding < self.window


def _mean(before: float, newest: float) -> float:
    """Return a moving mean; the first measurement is taken as it is."""
    return before + _NEWEST * (newest - before) if before else newest


class Grants:
    """The messages granted to each running actor.

    Args:
        message: Transitions of a full message.
        window: Maximum number of outstanding messages of an actor that is near.
    """

    def __init__(self, message: int, window: int) -> None:
        self._message = message
        self._window = window
        self._accounts: dict[Peer, _Account] = {}
        self._turns = 0
        # Kept over all accounts by `_add` and `_remove`, so that a message rarely scans them.
        self._queue: list[tuple[int, int, _Account]] = []
        """Sorted: outstanding messages, turn and account of each actor."""
        self._times: list[float] = []
        """Sorted: the known times in which actors collect a message."""
        self._with_room = 0
        """Actors whose window is not full."""
        self._surplus = 1.0
        self.outstanding = 0
        """Messages that are granted and have not arrived."""
        self.round_trip_s = 0.0
        """From a grant to the arrival of its message, where the actor had no other grant."""

    @property
    def all_blocked(self) -> bool:
        """Whether there are actors, and none of them may act."""
        return bool(self._accounts) and not self.outstanding

    @property
    def room_for_next(self) -> float:
        """Room in transitions that the next grant needs; infinite if all windows are full."""
        if not self._with_room:
            return float("inf")
        return float((self.outstanding + 1) * self._message)

    @property
    def shortage_for_next(self) -> float:
        """Shortage in transitions that makes the next grant due; infinite if none would help."""
        useful = self._useful
        if self._with_room and any(has < a.most_ahead(useful) for has, _, a in self._queue):
            return float(self.outstanding * self._message)
        return float("inf")

    @property
    def _useful(self) -> int:
        """Outstanding messages that keep the fastest actor busy; the window if unknown."""
        if not (self.round_trip_s and self._times):
            return self._window
        return min(self._window, max(2, 1 + round(self.round_trip_s / self._times[0])))

    def on_arrival(self, peer: Peer) -> None:
        """Add an actor. It replaces the earlier incarnations of the same actor."""
        if peer not in self._accounts:
            for other in [p for p in self._accounts if p.actor_id == peer.actor_id]:
                self.on_end(other)
            self._accounts[peer] = account = _Account(peer, self._window, self._next_turn())
            self._add(account)

    def on_end(self, peer: Peer) -> None:
        """Remove an actor together with its outstanding grants."""
        if account := self._accounts.pop(peer, None):
            self._remove(account)

    def on_received(
        self, peer: Peer, seq: int, *, at_once: bool | None, now_s: float, network_s: float = 0.0
    ) -> None:
        """Count a message that arrived; `at_once` says whether it can be stored without waiting.

        `at_once` is None if that says nothing about the learner's speed, as during warm-up.
        `network_s` is a round trip without any wait in the learner, 0 if unknown.
        """
        if account := self._accounts.get(peer):
            self._remove(account)
            account.received = max(account.received, seq)
            self._widen(account, network_s, now_s)
            measured_every = _MEASURED_EVERY * account.window // self._window
            account.drains |= account.received % measured_every == 0
            if account.granted_at is not None:
                took_s, account.granted_at = now_s - account.granted_at, None
                self.round_trip_s = _mean(self.round_trip_s, took_s)
            account.arrived(now_s)
            self._add(account)
        if at_once is None:
            return
        if at_once:
            self._surplus = min(self._window, self._surplus + 1 / max(1, len(self._accounts)))
        else:
            self._surplus = max(1.0, self._surplus / 2)

    def _widen(self, account: _Account, network_s: float, now_s: float) -> None:
        """Set an actor's window. A configured 1 asks for the newest model in each message."""
        in_trip = account.rate.update(account.received, now_s) * network_s
        most = min(self._window**2, _MOST_UNDER_WAY)
        account.under_way = min(1 + ceil(_HEADROOM * in_trip), most) if in_trip else 0
        account.window = max(self._window, account.under_way)

    def issue(
        self, room: float, *, shortage: float, starved: bool, now_s: float
    ) -> Iterator[tuple[Peer, int]]:
        """Yield new grants: an actor and the number of the message that it may collect.

        Of the actors that may have one, the one with the fewest outstanding messages comes first;
        among equals they take turns.

        Args:
            room: Transitions that may still be stored, beyond those that wait to be stored.
            shortage: Transitions that the learner consumes in a round trip, beyond those stored.
            starved: Whether the learner waits for experience.
            now_s: The time.
        """
        useful = self._useful
        surplus = int(self._surplus) if starved else 0
        while self._with_room:
            fits = room >= (self.outstanding + 1) * self._message
            short = shortage > self.outstanding * self._message
            if not (fits or short or surplus):
                return
            for has, _, account in self._queue:
                if (fits and has < account.window) or (
                    has < account.most_ahead(useful)
                    and (short or has * self._window < surplus * account.window)
                ):
                    break
            else:
                return
            self._remove(account)
            if account.received and not has:  # the first one includes a start
                account.granted_at, account.drains = now_s, False
            account.granted = max(account.granted, account.received) + 1
            account.turn = self._next_turn()
            self._add(account)
            yield account.peer, account.granted

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _add(self, account: _Account) -> None:
        """Count an account, after it has changed."""
        has = account.outstanding
        insort(self._queue, (has, account.turn, account))
        if account.collecting_s:
            insort(self._times, account.collecting_s)
        self.outstanding += has
        self._with_room += account.has_room

    def _remove(self, account: _Account) -> None:
        """No longer count an account, before it changes."""
        has = account.outstanding
        del self._queue[bisect_left(self._queue, (has, account.turn))]
        if account.collecting_s:
            del self._times[bisect_left(self._times, account.collecting_s)]
        self.outstanding -= has
        self._with_room -= account.has_room
