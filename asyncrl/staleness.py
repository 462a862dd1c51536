"""How old the policies behind experience are, and whether that is too old. Publishes nothing.

Sampled batches are dated for the records alone: a replay holds experience of old models on purpose.
What arrives should be of new ones, so that is where limits are.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrl.messages import Experience
from asyncrl.recorder import Record
from asyncrl.types import ActorId, Columns, ModelVersion

__all__ = ["Lag", "LagAlarm", "Staleness", "complaint"]

logger = logging.getLogger(__name__)

_KEPT = 100_000
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


class LagAlarm:
    """Warns of actors whose experience is of too old models. Safe to use from two threads."""

    def __init__(self, limit: Lag, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._versions: list[ModelVersion] = []
        self._published_at: list[float] = []
        self._warned_at: dict[ActorId, float] = {}

    def on_publish(self, version: ModelVersion) -> None:
        """Note that a model was published now; each one is newer than the one before."""
        with self._lock:
            self._versions.append(version)
            self._published_at.append(self._clock())
            if len(self._versions) > 2 * _KEPT:
                del self._versions[:_KEPT], self._published_at[:_KEPT]

    def on_experience(self, message: Experience) -> None:
        """Look at a message that has arrived now; warn of its actor, but not all the time."""
        actor_id, now = message.peer.actor_id, self._clock()
        words = complaint(actor_id, self._lag_of(message.model_version, now), self._limit)
        if words and now - self._warned_at.get(actor_id, -_CALM_S) >= _CALM_S:
            self._warned_at[actor_id] = now
            logger.warning("%s", words)

    def _lag_of(self, version: ModelVersion, now: float) -> Lag:
        with self._lock:
            newer = bisect_right(self._versions, version)
            if newer == len(self._versions):
                return Lag(0.0, 0)
            return Lag(now - self._published_at[newer], self._versions[-1] - version)


class Staleness:
    """Remembers when each model was published, and dates batches and messages by it."""

    def __init__(self, limit: Lag = _NO_LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alarm = LagAlarm(limit, clock) if limit != _NO_LIMIT else None
        self._published_at: dict[int, float] = {}

    def on_publish(self, version: ModelVersion) -> None:
        """Note that a model was published now."""
        if self._alarm:
            self._alarm.on_publish(version)
        self._published_at[version] = self._clock()
        if len(self._published_at) > _KEPT:
            del self._published_at[next(iter(self._published_at))]

    def on_experience(self, message: Experience) -> None:
        """Warn if a message that has arrived now is of too old a model; from any thread."""
        if self._alarm:
            self._alarm.on_experience(message)

    def of(self, batch: Columns, opt_steps: int) -> Record:
        """Return the lag metrics of one batch."""
        if "model_version" not in batch:
            return {}
        versions, counts = np.unique(batch["model_version"], return_counts=True)
        oldest = next(iter(self._published_at.values()), self._clock())
        now = self._clock()
        ages = np.array([now - self._published_at.get(int(v), oldest) for v in versions])
        lags = opt_steps - versions.astype(np.float64)
        return {
            "lag/versions_mean": float(np.average(lags, weights=counts)),
            "lag/versions_max": float(lags.max()),
            "lag/seconds_mean": float(np.average(ages, weights=counts)),
            "lag/seconds_max": float(ages.max()),
        }
