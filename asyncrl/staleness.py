"""How old the policy behind a sampled batch is, in versions and in seconds. Publishes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from asyncrl.recorder import Record
from asyncrl.types import Columns

__all__ = ["Staleness"]

_KEPT = 100_000


class Staleness:
    """Remembers when each model was published, and dates batches by it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._published_at: dict[int, float] = {}

    def on_publish(self, version: int) -> None:
        """Note that a model was published now."""
        self._published_at[version] = self._clock()
        if len(self._published_at) > _KEPT:
            del self._published_at[next(iter(self._published_at))]

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
