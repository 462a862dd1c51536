"""Counts where every transition went: produced = stored + dropped + lost + in flight."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from asyncrl.core.messages import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The ledger at one moment, in transitions."""

    produced: int
    stored: int
    dropped: int
    lost: int

    @property
    def in_flight(self) -> int:
        """Produced by a running actor and not yet received."""
        return self.produced - self.stored - self.dropped - self.lost


@dataclass(slots=True)
class _Account:
    produced: int = 0
    received: int = 0
    env_steps: int = 0
    ended: bool = False

    @property
    def lost(self) -> int:
        return self.produced - self.received if self.ended else 0


class Ledger:
    """Keeps one account per incarnation of each actor. Safe to use from several threads.

    The sums are kept up to date, since each optimisation step reads them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[Peer, _Account] = {}
        self._dropped: Counter[str] = Counter()
        self._dropped_before = 0
        self._produced = self._stored = self._lost = self._env_steps = 0

    def resume_at(self, before: Balance, *, env_steps: int) -> None:
        """Continue from the balance of a saved run; what was in flight there is lost."""
        with self._lock:
            self._produced, self._stored = before.produced, before.stored
            self._dropped_before = before.dropped
            self._lost = before.lost + before.in_flight
            self._env_steps = env_steps

    def on_received(self, peer: Peer, *, transitions: int, produced: int, env_steps: int) -> None:
        """Count a message on arrival, before it is stored or dropped."""
        self._update(peer, transitions=transitions, produced=produced, env_steps=env_steps)

    def on_produced(self, peer: Peer, *, produced: int, env_steps: int = 0) -> None:
        """Count what an actor has produced, sent or not."""
        self.on_received(peer, transitions=0, produced=produced, env_steps=env_steps)

    def on_stored(self, transitions: int) -> None:
        """Count transitions that were stored in replay."""
        with self._lock:
            self._stored += transitions

    def on_dropped(self, reason: str, transitions: int) -> None:
        """Count transitions that arrived and were not stored."""
        with self._lock:
            self._dropped[reason] += transitions

    def on_ended(self, peer: Peer, *, produced: int) -> None:
        """Close an actor's account; what it produced and has not arrived counts as lost.

        Messages of a dead actor may still be in flight. On arrival they no longer count as lost.
        """
        self._update(peer, produced=produced, ended=True)

    def has_ended(self, peer: Peer) -> bool:
        """Whether an actor's account is closed."""
        with self._lock:
            account = self._accounts.get(peer)
            return account is not None and account.ended

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors, as far as they have reported."""
        return self._env_steps

    @property
    def dropped(self) -> dict[str, int]:
        """Transitions dropped, by reason."""
        with self._lock:
            return dict(self._dropped)

    def balance(self) -> Balance:
        """Return the sums over all accounts."""
        with self._lock:
            return Balance(
                produced=self._produced,
                stored=self._stored,
                dropped=self._dropped_before + sum(self._dropped.values()),
                lost=self._lost,
            )

    def _update(
        self,
        peer: Peer,
        *,
        transitions: int = 0,
        produced: int = 0,
        env_steps: int = 0,
        ended: bool = False,
    ) -> None:
        with self._lock:
            account = self._accounts.setdefault(peer, _Account())
            had = account.produced, account.env_steps, account.lost
            account.received += transitions
            account.produced = max(account.produced, produced)
            account.env_steps = max(account.env_steps, env_steps)
            account.ended |= ended
            self._produced += account.produced - had[0]
            self._env_steps += account.env_steps - had[1]
            self._lost += account.lost - had[2]
