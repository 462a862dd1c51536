"""Keeps inserts and samples in proportion. Never waits; knows nothing about threads.

With `s` samples per insert, the limiter keeps

    difference = s * inserted - sampled

within `s * min_size` plus or minus an error band. Above the band actors wait for the learner, below
it the learner waits for actors. A band narrower than one message and one batch together could
deadlock, so it is refused.

If each transition is sampled once, as on-policy agents do, the band begins at 0, since only
inserted transitions can be sampled. It ends one message and one batch ahead: the shorter the queue,
the newer the model that acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from asyncrl.core.errors import ConfigError
from asyncrl.learner.config import RateLimiterConfig


class RateLimiter:
    """Counts inserts and samples, and says whether more of them are allowed."""

    def __init__(
        self,
        config: RateLimiterConfig,
        *,
        max_insert: int,
        lowest: float,
        highest: float,
        stride: int = 1,
    ) -> None:
        self.max_insert = max_insert
        """Transitions of a full message."""
        self.stride = stride
        """Transitions for each sequence, 1 where no sequences are sampled."""
        self._ratio = config.ratio
        self._min_size = config.min_size
        self._lowest = lowest
        self._highest = highest
        self._offset = 0.0  # subtracted from the difference after a change of settings
        self.inserted = 0
        """Transitions inserted so far."""
        self.sampled = 0
        """Transitions, or sequences, sampled so far."""

    def may_insert(self, count: int) -> bool:
        """Whether `count` more transitions may be inserted now."""
        if self._ratio == 0 or self.warm_up_left():
            return True
        return self._difference(inserts=count) <= self._highest

    def room(self) -> float:
        """Return how many transitions may be inserted before the next sample."""
        if self._ratio == 0:
            return float("inf")
        return (self._highest - self._difference()) / self._ratio

    def stock(self) -> float:
        """Return how many transitions' worth of samples are allowed before the next insert."""
        if self._ratio == 0:
            return float("inf")
        return (self._difference() - self._lowest) / self._ratio

    def consumed(self) -> float:
        """Return how many transitions' worth of samples there were."""
        return self.sampled / self._ratio if self._ratio else 0.0

    def warm_up_left(self) -> int:
        """Return how many more transitions a first sample needs."""
        return max(0, self._min_size - self.inserted)

    def may_sample(self, count: int) -> bool:
        """Whether `count` more transitions may be sampled now."""
        if self.warm_up_left():
            return False
        if self._ratio == 0:
            return True
        return self._difference(samples=count) >= self._lowest

    def state(self) -> dict[str, float]:
        """Return what `resume_at` needs."""
        counts = {"inserted": self.inserted, "sampled": self.sampled, "offset": self._offset}
        return {**counts, **self._settings()}

    def resume_at(self, saved: Mapping[str, float]) -> None:
        """Continue from a saved state; from the middle of the band if its settings were others.

        Otherwise one side would have to catch up for the whole past of the run. A warm-up that is
        left comes first, and ends in the middle of the band.
        """
        self.inserted, self.sampled = int(saved["inserted"]), int(saved["sampled"])
        self._offset = saved["offset"]
        settings = self._settings()
        if any(saved[name] != value for name, value in settings.items()):
            self._offset = 0.0
            left = self.warm_up_left()
            self._offset = self._difference(inserts=left) - (self._lowest + self._highest) / 2

    def on_insert(self, count: int) -> None:
        """Count inserted transitions."""
        self.inserted += count

    def on_sample(self, count: int) -> None:
        """Count samples."""
        self.sampled += count

    def _settings(self) -> dict[str, float]:
        """Return the settings that say where the middle of the band is."""
        return {"samples_per_insert": self._ratio, "min_size": self._min_size}

    def _difference(self, *, inserts: int = 0, samples: int = 0) -> float:
        """Return the difference after further inserts and samples."""
        ahead = self._ratio * (self.inserted + inserts) - (self.sampled + samples)
        return ahead - self._offset


def build_limiter(
    config: RateLimiterConfig,
    *,
    max_insert: int,
    batch_size: int,
    once: bool = False,
    stride: int = 1,
) -> RateLimiter:
    """Build the limiter for messages of up to `max_insert` transitions and for a batch size.

    `once` is for a replay that returns each transition once, `stride` for one of sequences: the
    transitions for each. Only the replay knows how many sequences a message brings, and only
    when it is stored. So all counts are in transitions.
    """
    if once:
        return _build_once(config, max_insert, batch_size)
    ratio, min_size = config.ratio / stride, config.min_size * stride
    needed = max_insert * ratio + batch_size
    if not config.band_transitions:
        # Twice the minimum lets one side work while the other side's message is in flight.
        band = max(needed, 0.1 * ratio * min_size)
    else:
        band = config.band_transitions * ratio
        if ratio and 2 * band < needed:
            least = -(-needed // (2 * ratio))
            raise ConfigError(
                f"limiter.band_transitions={config.band_transitions} would deadlock: with "
                f"messages of up to {max_insert} transitions, batches of {batch_size} and "
                f"samples_per_insert={config.ratio:g} actors and learner could wait "
                f"for each other; set it to at least {least:.0f}, or to 0 for automatic"
            )
    return RateLimiter(
        replace(config, samples_per_insert=ratio, min_size=min_size),
        max_insert=max_insert,
        lowest=ratio * min_size - band,
        highest=ratio * min_size + band,
        stride=stride,
    )


def _build_once(config: RateLimiterConfig, max_insert: int, batch_size: int) -> RateLimiter:
    """Build a limiter that never allows more samples than inserts."""
    needed = max_insert + batch_size
    if config.samples_per_insert not in {None, 1.0}:
        raise ConfigError(
            "limiter.samples_per_insert must be 1 with a replay that returns each transition "
            f"once, got {config.samples_per_insert:g}"
        )
    ahead = config.band_transitions or needed
    if ahead < needed:
        raise ConfigError(
            f"limiter.band_transitions={ahead} would deadlock: a message and a batch together "
            f"are {needed} transitions; set it to at least this number, or to 0 for automatic"
        )
    return RateLimiter(
        replace(config, samples_per_insert=1.0, min_size=1),
        max_insert=max_insert,
        lowest=0.0,
        highest=float(ahead),
    )
