"""Decides which requests a server of inference computes together, and when. Computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.core.inference import OBS, InferenceRequest, ServingConfig
from asyncrl.core.types import ActorId

_AUTO_SHARE, _AUTO_SHARE_OF_SLOW = 0.5, 0.75
"""A batch by default holds at least this share of the rows of all actors alive. With all of them,
each batch would wait for the slowest actor, and actors for each other. Batches of a large network
take nearly as long with fewer rows, so that waiting for more of them pays off."""

_LONGEST_WAIT_S = 0.05
"""A batch that took longer, such as the first one on a GPU, is taken for an exception."""

_ALIVE_S = 1.0
"""An actor that has asked for nothing in this time is not counted as alive."""


@dataclass(slots=True)
class _Asker:
    """The newest incarnation of an actor."""

    incarnation: int
    rows: int
    asked_at: float


class Batcher:
    """Gathers requests, one of each actor: an actor waits for its answer before it asks again.

    A newer request replaces an older one of the same actor: it was sent again, or comes from the
    actor's next incarnation. An earlier incarnation is dead, and its requests are dropped.
    """

    def __init__(self, config: ServingConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._waiting: dict[ActorId, tuple[InferenceRequest, float]] = {}
        self._askers: dict[ActorId, _Asker] = {}
        self._taken_at = self._took_s = 0.0

    def add(self, request: InferenceRequest) -> None:
        """Take a request with at least one row."""
        peer, rows, now = request.peer, len(request.inputs[OBS]), self._clock()
        asker = self._askers.get(peer.actor_id)
        if asker is not None and peer.incarnation < asker.incarnation:
            return
        self._askers[peer.actor_id] = _Asker(peer.incarnation, rows, now)
        before = self._waiting.pop(peer.actor_id, None)
        repeated = before is not None and before[0].peer == peer
        self._waiting[peer.actor_id] = request, before[1] if before and repeated else now

    def wait_s(self) -> float | None:
        """Return in which time a batch is due, 0 if one is; None if no request waits."""
        if not self._waiting:
            return None
        now = self._clock()
        rows = sum(len(request.inputs[OBS]) for request, _ in self._waiting.values())
        if rows >= min(self._wanted(now), self._config.max_batch):
            return 0.0
        oldest = min(at for _, at in self._waiting.values())
        longest_s = self._config.max_wait_s
        if self._is_slow():
            longest_s = max(longest_s, min(self._took_s, _LONGEST_WAIT_S))
        return max(0.0, oldest + longest_s - now)

    def take(self) -> list[InferenceRequest]:
        """Remove and return the next batch: the oldest requests that have the same inputs."""
        batch: list[InferenceRequest] = []
        rows = 0
        for request, _ in sorted(self._waiting.values(), key=lambda waiting: waiting[1]):
            rows += len(request.inputs[OBS])
            if batch and rows > self._config.max_batch:
                break
            if not batch or request.inputs.keys() == batch[0].inputs.keys():
                batch.append(request)
        for request in batch:
            del self._waiting[request.peer.actor_id]
        self._taken_at = self._clock()
        return batch

    def computed(self) -> None:
        """Note that the last batch is computed."""
        self._took_s = self._clock() - self._taken_at

    def _is_slow(self) -> bool:
        config = self._config
        return not config.min_batch and 0 < config.max_wait_s < self._took_s

    def _wanted(self, now: float) -> float:
        if self._config.min_batch:
            return self._config.min_batch
        alive = (a.rows for a in self._askers.values() if now - a.asked_at <= _ALIVE_S)
        return (_AUTO_SHARE_OF_SLOW if self._is_slow() else _AUTO_SHARE) * sum(alive)
