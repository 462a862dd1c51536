"""Counts where every transition went: produced = stored + dropped + lost + in flight."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace

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


class Ledger:
    """Keeps one account per incarnation of each actor. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[Peer, _Account] = {}
        self._dropped: Counter[str] = Counter()
        self._stored = 0
        self._before = Balance(produced=0, stored=0, dropped=0, lost=0)
        self._env_steps_before = 0

    def resume_at(self, before: Balance, *, env_steps: int) -> None:
        """Continue from the balance of a saved run; what was in flight there is lost."""
        with self._lock:
            self._before = replace(before, lost=before.lost + before.in_flight)
            self._env_steps_before = env_steps

    def on_received(self, peer: Peer, *, transitions: int, produced: int, env_steps: int) -> None:
        """Count a message on arrival, before it is stored or dropped."""
        with self._lock:
            account = self._accounts.setdefault(peer, _Account())
            account.received += transitions
            account.produced = max(account.produced, produced)
            account.env_steps = max(account.env_steps, env_steps)

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
        with self._lock:
            account = self._accounts.setdefault(peer, _Account())
            account.produced = max(account.produced, produced)
            account.ended = True

    def has_ended(self, peer: Peer) -> bool:
        """Whether an actor's account is closed."""
        with self._lock:
            account = self._accounts.get(peer)
            return account is not None and account.ended

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors, as far as they have reported."""
        with self._lock:
            own = sum(account.env_steps for account in self._accounts.values())
            return self._env_steps_before + own

    @property
    def dropped(self) -> dict[str, int]:
        """Transitions dropped, by reason."""
        with self._lock:
            return dict(self._dropped)

    def balance(self) -> Balance:
        """Return the sums over all accounts."""
        with self._lock:
            accounts, before = self._accounts.values(), self._before
            return Balance(
                produced=before.produced + sum(a.produced for a in accounts),
                stored=before.stored + self._stored,
                dropped=before.dropped + sum(self._dropped.values()),
                lost=before.lost + sum(a.produced - a.received for a in accounts if a.ended),
            )
