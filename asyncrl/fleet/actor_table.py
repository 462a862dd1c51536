"""What each actor slot has done, over all its incarnations; turns actors' reports into records.

Does not know how reports arrive.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from asyncrl.core.callback import Events
from asyncrl.core.env import SUCCESS
from asyncrl.core.messages import ActorReport, Peer
from asyncrl.core.recorder import Record
from asyncrl.core.types import ActorId, Array, IntArray, ModelVersion

_MOST_EPISODES = 100_000
"""Maximum number of episodes kept between two records; beyond it the oldest are dropped."""


@dataclass(slots=True)
class ActorRow:
    """One actor slot."""

    env_steps: int = 0
    episodes: int = 0
    restarts: int = 0
    memory_restarts: int = 0
    dropped: bool = False
    left: bool | None = None
    """Whether it has left on request; None if it never has."""

    steps_per_s: float = 0.0
    model_version: ModelVersion | None = None
    """The newest model behind its experience; None without experience."""

    policy: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds that it has reported while the learner learned."""

    waited_s: float = 0.0
    """Those of them in which it waited."""

    def totals(self) -> dict[str, float]:
        """Return the counters of the whole run, and the last numbers of the policy."""
        return {
            **self.policy,
            "env_steps": self.env_steps,
            "env_steps_per_s": (
                self.env_steps / self.seconds if self.seconds else self.steps_per_s
            ),
            "wait_share": self.waited_s / self.seconds if self.seconds else 0.0,
            "episodes": self.episodes,
            "restarts": self.restarts,
            "memory_restarts": self.memory_restarts,
            "env_restarts": self.policy.get("env_restarts", 0.0),
            "dropped": int(self.dropped),
            "left": int(self.left or False),
        }


class _Reported(NamedTuple):
    """What an incarnation has reported so far."""

    env_steps: int
    episodes: int


class ActorTable:
    """One row per slot. Safe to use from several threads."""

    def __init__(self) -> None:
        self.episodes_before = 0
        """Episodes of earlier parts of a resumed run, which no row contains."""
        self.events: Events = deque()
        """What callbacks are called for."""
        self._lock = threading.Lock()
        self._rows: dict[ActorId, ActorRow] = {}
        self._counted: dict[Peer, _Reported] = {}
        self._seconds: Counter[str] = Counter()
        self._total_seconds: Counter[str] = Counter()
        self._learning_seconds: Counter[str] = Counter()
        self._learns = True
        self._env_steps: dict[Peer, int] = {}
        self._returns: Array = np.empty(0, np.float64)
        self._lengths: IntArray = np.empty(0, np.int64)
        self._info_sums: Counter[str] = Counter()
        self._info_counts: Counter[str] = Counter()

    @property
    def episodes(self) -> int:
        """Episodes that have ended in the whole run."""
        with self._lock:
            return self._all_episodes()

    def _all_episodes(self) -> int:
        return self.episodes_before + sum(row.episodes for row in self._rows.values())

    def on_report(self, report: ActorReport) -> None:
        """Process an actor's report."""
        with self._lock:
            row = self._rows.setdefault(report.peer.actor_id, ActorRow())
            before = self._counted.get(report.peer, _Reported(0, 0))
            steps = report.env_steps - before.env_steps
            self._count(report.peer, report.env_steps)
            row.episodes += report.episodes - before.episodes
            if seconds := sum(report.shares.values()):
                row.steps_per_s = steps / seconds
            if self._learns:
                row.seconds += seconds
                row.waited_s += report.shares.get("wait", 0.0)
            row.policy = dict(report.policy)
            self._counted[report.peer] = _Reported(report.env_steps, report.episodes)
            self._seconds.update(report.shares)
            self._total_seconds.update(report.shares)
            self._info_sums.update(report.info_sums)
            self._info_counts.update(report.info_counts)
            if len(report.episode_returns):
                self._returns = _newest(self._returns, report.episode_returns)
                self._lengths = _newest(self._lengths, report.episode_lengths)
                values = report.episode_returns, report.episode_lengths
                self.events.append(("episodes", values))

    def on_experience(self, peer: Peer, *, env_steps: int, model_version: ModelVersion) -> None:
        """Update an actor's environment steps between its reports, or if no more reports come."""
        with self._lock:
            self._count(peer, env_steps)
            self._rows.setdefault(peer.actor_id, ActorRow()).model_version = model_version

    def _count(self, peer: Peer, env_steps: int) -> None:
        new = env_steps - self._env_steps.get(peer, 0)
        if new > 0:
            self._env_steps[peer] = env_steps
            self._rows.setdefault(peer.actor_id, ActorRow()).env_steps += new

    def on_restart(self, actor_id: ActorId, *, at_memory_limit: bool = False) -> None:
        """Count a restart of a slot: after an unexpected exit, or at the memory limit."""
        with self._lock:
            row = self._rows.setdefault(actor_id, ActorRow())
            row.restarts += not at_memory_limit
            row.memory_restarts += at_memory_limit
        self.events.append(("actor_restarted", (actor_id,)))

    def on_drop(self, actor_id: ActorId) -> None:
        """Note that the run continues without a slot."""
        with self._lock:
            self._rows.setdefault(actor_id, ActorRow()).dropped = True
        self.events.append(("actor_dropped", (actor_id,)))

    def rows(self, away: Collection[ActorId] = ()) -> dict[ActorId, ActorRow]:
        """Return the rows by slot; `away` are the actors that have left on request."""
        with self._lock:
            self._mark(away)
            return dict(sorted(self._rows.items()))

    def _mark(self, away: Collection[ActorId]) -> None:
        for actor_id, row in self._rows.items():
            if actor_id in away or row.left is not None:
                row.left = actor_id in away
                row.steps_per_s *= not row.left

    def end_learning(self) -> None:
        """Freeze the time shares: from now on actors only wait for the end of the run."""
        with self._lock:
            self._learning_seconds = self._total_seconds.copy()
            self._learns = False

    def shares(self) -> dict[str, float]:
        """Return the actors' time shares over the run, without its end; they add up to 1."""
        with self._lock:
            return _shares(self._learning_seconds) or _shares(self._total_seconds)

    def take(self, away: Collection[ActorId] = ()) -> Record:
        """Return the metrics since the last call, and those of the whole run; see `rows`."""
        with self._lock:
            record = {"episodes": float(self._all_episodes())}
            self._mark(away)
            if len(self._returns):
                record["episode/return_mean"] = float(np.mean(self._returns))
                record["episode/return_min"] = float(np.min(self._returns))
                record["episode/return_max"] = float(np.max(self._returns))
                record["episode/return_std"] = float(np.std(self._returns))
                record["episode/length_mean"] = float(np.mean(self._lengths))
            # Episodes may have ended without a number; a count of 0 is left out here.
            for name, count in (+self._info_counts).items():
                metric = "episode/success_rate" if name == SUCCESS else f"info/{name}"
                record[metric] = self._info_sums[name] / count
            for phase, share in _shares(self._seconds).items():
                record[f"share/actor_{phase}"] = share
            for actor_id, row in sorted(self._rows.items()):
                record |= _row_record(f"actor/{actor_id}", row)
            self._returns, self._lengths = self._returns[:0], self._lengths[:0]
            self._seconds.clear()
            self._info_sums.clear()
            self._info_counts.clear()
            return record


def hosts_record(hosts: Mapping[str, Mapping[str, float]]) -> Record:
    """Return the sums over hosts; nothing in a run without hosts."""
    if not hosts:
        return {}
    here = [host for host in hosts.values() if not (host["lost"] or host["left"])]
    return {
        "hosts/joined": float(len(here)),
        "hosts/room": sum(host["room"] for host in here),
        "hosts/actors": sum(host["actors"] for host in here),
        "hosts/lost": sum(host["lost"] for host in hosts.values()),
        "hosts/left": sum(host["left"] for host in hosts.values()),
        "hosts/traffic_mb": sum(host["traffic_bytes"] for host in hosts.values()) / 1e6,
        "hosts/round_trip_ms": 1000 * max((host["round_trip_s"] for host in here), default=0.0),
    }


def _row_record(prefix: str, row: ActorRow) -> Record:
    return {
        f"{prefix}/env_steps": float(row.env_steps),
        f"{prefix}/env_steps_per_s": row.steps_per_s,
        f"{prefix}/episodes": float(row.episodes),
        f"{prefix}/restarts": float(row.restarts),
        **({f"{prefix}/memory_restarts": float(n)} if (n := row.memory_restarts) else {}),
        **(
            {}
            if row.model_version is None
            else {f"{prefix}/model_version": float(row.model_version)}
        ),
        **({f"{prefix}/dropped": 1.0} if row.dropped else {}),
        **({} if row.left is None else {f"{prefix}/left": float(row.left)}),
        **{f"{prefix}/{name}": value for name, value in row.policy.items()},
    }


def _newest(kept: Array, more: Array) -> Array:
    return np.concatenate((kept, more))[-_MOST_EPISODES:]


def _shares(seconds: Counter[str]) -> dict[str, float]:
    total = sum(seconds.values())
    return {phase: value / total for phase, value in seconds.items()} if total else {}
