"""Policy lag: how old the models behind experience are, and whether too old. Publishes nothing.

The lag of sampled batches is only recorded: a replay contains experience of old models on purpose.
Experience that arrives should come from new models, so the limits apply to it.
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
"""Number of publications kept: at a hundred per second they cover 17 minutes."""

_CALM_S = 60.0
"""Minimum seconds between two warnings about the same actor."""


_READ_TOGETHER = 4096
"""Sampled rows that are kept before their lags are computed: one call of numpy for many rows."""

_EVERY = 8
"""Step between the sampled rows whose age in seconds is looked up, which takes longer."""

_BINS = 32
"""Bins of the histogram: 0, 1, 2 to 3, 4 to 7, and so on."""


class Lag(NamedTuple):
    """How far a model is behind the newest published one, or the limit for that."""

    seconds: float
    """Seconds since a newer model was published. As a limit, 0 disables."""

    opt_steps: int
    """Optimisation steps behind the newest model. As a limit, 0 disables."""


def lag_warning(actor_id: ActorId, lag: Lag, limit: Lag) -> str | None:
    """Return a warning that an actor's model is too old, with what to do; None if it is not."""
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
        f"experience of actor {actor_id} comes from a model that is {lag.seconds:.3g} s and "
        f"{lag.opt_steps} opt steps behind the newest one, more than {' and '.join(exceeded)}; "
        "keep less experience in flight (lower transport.window, segment.length or "
        "envs_per_actor), check whether that actor is slower than others "
        f"(actor/{actor_id}/env_steps_per_s), or raise the limit"
    )


NO_LIMIT = Lag(0.0, 0)


class _Publications:
    """When the last models were published.

    All memory is allocated and touched at the start. Allocated bit by bit, it would look like a
    leak.
    """

    def __init__(self) -> None:
        self._versions = np.full(_KEPT, 0, np.int64)
        self._at = np.full(_KEPT, 0.0)
        self._count = 0

    @property
    def newest(self) -> int:
        """The version of the newest model; -1 before the first one."""
        return int(self._versions[self._count - 1]) if self._count else -1

    def add(self, version: ModelVersion, now: float) -> None:
        """Add a model that is newer than all before it."""
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
        """Return when these were published; unknown old versions count as the oldest known one."""
        if not self._count:
            return np.full(len(versions), otherwise)
        found = np.searchsorted(self._versions[: self._count], versions)
        at: Array = self._at[found.clip(max=self._count - 1)]
        return at

    def lag_of(self, version: ModelVersion, now: float) -> Lag:
        """Return how long there has been a newer model, and how far ahead the newest is."""
        newer = int(np.searchsorted(self._versions[: self._count], version, "right"))
        if newer == self._count:
            return Lag(0.0, 0)
        ahead = int(self._versions[self._count - 1]) - version
        return Lag(now - float(self._at[newer]), ahead)


class _Drawn(NamedTuple):
    """The models behind batches that were sampled together."""

    versions: IntArray
    opt_steps: int
    batches: int
    now: float


class _Sum(NamedTuple):
    """Statistics of lags: their number, sum and maximum."""

    n: int = 0
    total: float = 0.0
    most: float = 0.0

    def with_more(self, lags: Array) -> _Sum:
        """Return the sum with some more lags in it."""
        most = max(self.most, float(lags.max()))
        return _Sum(self.n + len(lags), self.total + float(lags.sum()), most)


class Staleness:
    """Keeps when each model was published, and computes the lag of batches and messages.

    Warns about actors whose models are too old. Safe to use from two threads.
    """

    def __init__(self, limit: Lag = NO_LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._published = _Publications()
        self.opt_steps = 0
        """Optimisation steps so far; the learner's thread sets them."""
        self._warned_at: dict[ActorId, float] = {}
        self._stored = _Sum()
        self._all_stored = _Sum()
        # What follows is used by the learner's thread only.
        self._unread: list[_Drawn] = []
        self._unread_rows = 0
        self._sampled = _Sum()
        self._ages = _Sum()
        self._least = np.inf
        self._newest_mean: float | None = None
        self._bins = np.zeros(_BINS, np.int64)

    def on_publish(self, version: ModelVersion) -> None:
        """Note that a model was published now; its version must be higher than the last one."""
        with self._lock:
            self._published.add(version, self._clock())

    def on_experience(self, message: Experience) -> bool:
        """Return whether the model of a message is too old on arrival.

        Warns about its actor at most once a minute.
        """
        if self._limit == NO_LIMIT:
            return False
        actor_id, now = message.peer.actor_id, self._clock()
        with self._lock:
            lag = self._published.lag_of(message.model_version, now)
        words = lag_warning(actor_id, lag, self._limit)
        if words and now - self._warned_at.get(actor_id, -_CALM_S) >= _CALM_S:
            self._warned_at[actor_id] = now
            logger.warning("%s", words)
        return words is not None

    @property
    def is_behind(self) -> bool:
        """Whether the newest published model is older than the agent's."""
        with self._lock:
            return self._published.newest < self.opt_steps

    def on_stored(self, message: Experience) -> None:
        """Add the lag of the models behind a message that is stored now."""
        versions = message.columns.get("model_version")
        if versions is None:
            versions = np.array([message.model_version])
        else:
            filled = np.arange(versions.shape[1]) < message.rows[:, None]
            versions = versions[filled & (message.columns["flags"] < END)]
        lags = self.opt_steps - versions.astype(np.float64)
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

    def on_sampled(self, batches: Columns, count: int = 1) -> None:
        """Add the lag of `count` batches of equal size that were sampled together.

        The first is learned from in the next optimisation step, the others in those after it.
        """
        versions = batches.get("model_version")
        if versions is None:
            return
        count = count if versions.size % count == 0 else 1
        self._unread.append(_Drawn(versions, self.opt_steps, count, self._clock()))
        self._unread_rows += versions.size
        if self._unread_rows >= _READ_TOGETHER:
            self._read()

    @property
    def histogram(self) -> dict[str, int]:
        """How many sampled rows of the run had which lag: by the least lag of each bin."""
        self._read()
        lows = [0, *(1 << e for e in range(len(self._bins) - 1))]
        return {str(low): int(n) for low, n in zip(lows, self._bins, strict=True) if n}

    @property
    def mean_when_sampled(self) -> float | None:
        """Mean lag of the newest record with a sampled batch; None without one."""
        return self._newest_mean

    def take(self) -> Record:
        """Return the lag metrics of what was stored and sampled since the last call."""
        with self._lock:
            (count, total, most), self._stored = self._stored, _Sum()
        stored = {"lag/at_insert_mean": total / count, "lag/at_insert_max": most} if count else {}
        return {**stored, **self._take_sampled()}

    def _take_sampled(self) -> Record:
        self._read()
        (count, total, most), self._sampled = self._sampled, _Sum()
        (n_ages, age, oldest), self._ages = self._ages, _Sum()
        least, self._least = self._least, np.inf
        if not count:
            return {}
        self._newest_mean = total / count
        return {
            "lag/versions_mean": total / count,
            "lag/versions_min": least,
            "lag/versions_max": most,
            "lag/seconds_mean": age / n_ages,
            "lag/seconds_max": oldest,
            **{f"lag/histogram/{low}": float(n) for low, n in self.histogram.items()},
        }

    def _read(self) -> None:
        drawn, self._unread, self._unread_rows = self._unread, [], 0
        for versions, opt_steps, count, now in drawn:
            steps = np.arange(opt_steps, opt_steps + count, dtype=np.float64)
            lags = (steps[:, None] - versions.reshape(count, -1)).ravel()
            self._sampled = self._sampled.with_more(lags)
            self._least = min(self._least, float(lags.min()))
            exponents = np.frexp(lags)[1].clip(0, len(self._bins) - 1)  # a lag of 2 to 3 has 2
            self._bins += np.bincount(exponents, minlength=len(self._bins))
            dated = now - self._published_at(versions, now)
            n, total, most = self._ages
            most = max(most, float(dated[-1]))
            self._ages = _Sum(n + len(dated) - 1, total + float(dated[:-1].sum()), most)

    def _published_at(self, versions: IntArray, now: float) -> Array:
        """Return when some of these models were published, and then the oldest of all."""
        some = np.append(versions.ravel()[::_EVERY], versions.min())
        with self._lock:
            return self._published.of(some, otherwise=now)
