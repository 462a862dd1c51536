"""How old the policies behind experience are, and whether that is too old. Publishes nothing.

Sampled batches are dated for the records alone: a replay holds experience of old models on purpose.
What arrives should be of new ones, so that is where limits are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrl.core.messages import Experience
from asyncrl.core.recorder import Record
from asyncrl.core.segment import END
from asyncrl.core.types import ActorId, Array, Columns, IntArray, ModelVersion

logger = logging.getLogger(__name__)

_KEPT = 100_000
"""Publications that are remembered: at a hundred a second, those of a quarter of an hour."""

_CALM_S = 60.0
"""Between two warnings about the same actor."""


class Lag(NamedTuple):
    """How far a model is behind the newest one that was published, or how far it may be."""

    seconds: float
    """Since a newer one has been there; of a limit, 0 is off."""

    opt_steps: int
    """That the newest one is ahead; of a limit, 0 is off."""


def complaint(actor_id: ActorId, lag: Lag, limit: Lag) -> str | None:
    """Say that an actor's experience is of too old a model, and what to do; None if it is not."""
    exceeded = [
        f"trainer.{name}={most:g}"
        for name, is_, most in (
            ("max_lag_s", lag.seconds, limit.seconds),
            ("max_lag_opt_steps", lag.opt_steps, limit.opt_steps),
        )
        if most and is_ > most
    ]
    if not exceeded:
        return None
    return (
        f"experience of actor {actor_id} is of a model that is {lag.seconds:.3g} s and "
        f"{lag.opt_steps} opt steps behind the newest one, more than {' and '.join(exceeded)}; "
        "have less under way (lower transport.window, segment.length or envs_per_actor), see "
        f"whether that actor is slower than others (actor/{actor_id}/env_steps_per_s), or raise "
        "the limit"
    )


_NO_LIMIT = Lag(0.0, 0)


class _Publications:
    """When the last models were published.

    All memory is taken, and touched, in the beginning: taken bit by bit it would look like a leak.
    """

    def __init__(self) -> None:
        self._versions = np.full(_KEPT, 0, np.int64)
        self._at = np.full(_KEPT, 0.0)
        self._count = 0

    @property
    def newest(self) -> int:
        """The version of the newest model; -1 if there is none."""
        return int(self._versions[self._count - 1]) if self._count else -1

    def add(self, version: ModelVersion, now: float) -> None:
        """Note a model that is newer than all before it."""
        if self._count == len(self._versions):
            self._forget_half()
        self._versions[self._count] = version
        self._at[self._count] = now
        self._count += 1

    def _forget_half(self) -> None:
        kept = self._count // 2
        for column in (self._versions, self._at):
            column[:kept] = column[self._count - kept : self._count]
        self._count = kept

    def of(self, versions: IntArray, otherwise: float) -> Array:
        """Return when these were published; older ones than are known count as the oldest."""
        if not self._count:
            return np.full(len(versions), otherwise)
        found = np.searchsorted(self._versions[: self._count], versions)
        at: Array = self._at[found.clip(max=self._count - 1)]
        return at

    def lag_of(self, version: ModelVersion, now: float) -> Lag:
        """Say how long there has been a newer one, and how far ahead the newest is."""
        newer = int(np.searchsorted(self._versions[: self._count], version, "right"))
        if newer == self._count:
            return Lag(0.0, 0)
        ahead = int(self._versions[self._count - 1]) - version
        return Lag(now - float(self._at[newer]), ahead)


class _Sum(NamedTuple):
    """How far behind models were when their experience was stored, in optimisation steps."""

    n: int = 0
    total: float = 0.0
    most: float = 0.0

    def with_more(self, lags: Array) -> _Sum:
        """Return the sum with some more lags in it."""
        most = max(self.most, float(lags.max()))
        return _Sum(self.n + len(lags), self.total + float(lags.sum()), most)


class Staleness:
    """Remembers when each model was published, and dates batches and messages by it.

    Warns of actors whose experience is of too old models. Safe to use from two threads.
    """

    def __init__(self, limit: Lag = _NO_LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._published = _Publications()
        self._warned_at: dict[ActorId, float] = {}
        self._stored = _Sum()
        self._all_stored = _Sum()

    def on_publish(self, version: ModelVersion) -> None:
        """Note that a model was published now; each one is newer than the one before."""
        with self._lock:
            self._published.add(version, self._clock())

    def on_experience(self, message: Experience) -> bool:
        """Return whether a message that has arrived now is of too old a model, and warn of it.

        An actor is warned of once a minute at the most.
        """
        if self._limit == _NO_LIMIT:
            return False
        actor_id, now = message.peer.actor_id, self._clock()
        with self._lock:
            lag = self._published.lag_of(message.model_version, now)
        words = complaint(actor_id, lag, self._limit)
        if words and now - self._warned_at.get(actor_id, -_CALM_S) >= _CALM_S:
            self._warned_at[actor_id] = now
            logger.warning("%s", words)
        return words is not None

    def is_behind(self, opt_steps: int) -> bool:
        """Whether the newest model that was published is older than this."""
        with self._lock:
            return self._published.newest < opt_steps

    def on_stored(self, message: Experience, opt_steps: int) -> None:
        """Note how far behind the models are that acted in a message which is stored now."""
        versions = message.columns.get("model_version")
        if versions is None:
            versions = np.array([message.model_version])
        else:
            filled = np.arange(versions.shape[1]) < message.rows[:, None]
            versions = versions[filled & (message.columns["flags"] < END)]
        lags = opt_steps - versions.astype(np.float64)
        if len(lags):
            with self._lock:
                self._stored = self._stored.with_more(lags)
                self._all_stored = self._all_stored.with_more(lags)

    @property
    def mean_at_insert(self) -> float | None:
        """Mean lag of all that was stored, in optimisation steps; None before that."""
        with self._lock:
            count, total, _ = self._all_stored
        return total / count if count else None

    def take(self) -> Record:
        """Return the lag metrics of what was stored since the last call."""
        with self._lock:
            (count, total, most), self._stored = self._stored, _Sum()
        if not count:
            return {}
        return {"lag/at_insert_mean": total / count, "lag/at_insert_max": most}

    def of(self, batch: Columns, opt_steps: int) -> Record:
        """Return the lag metrics of one batch."""
        if "model_version" not in batch:
            return {}
        versions, counts = np.unique(batch["model_version"], return_counts=True)
        now = self._clock()
        with self._lock:
            published = self._published.of(versions, otherwise=now)
        ages = now - published
        lags = opt_steps - versions.astype(np.float64)
        return {
            "lag/versions_mean": float(np.average(lags, weights=counts)),
            "lag/versions_max": float(lags.max()),
            "lag/seconds_mean": float(np.average(ages, weights=counts)),
            "lag/seconds_max": float(ages.max()),
        }
