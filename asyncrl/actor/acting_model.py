"""Which model an actor acts with: its own copy, or that of a server of inference."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from asyncrl.core.agent import Policy, counter_of
from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.core.inference import InferenceAnswer, InferenceClient, InferenceRequest
from asyncrl.core.messages import Peer
from asyncrl.core.transport import ActorLink
from asyncrl.core.types import Columns, ModelVersion

if TYPE_CHECKING:
    from asyncrl.core.launcher import Progress

_WAIT_S = 0.1
_REPEAT_S = 1.0
"""Seconds without an answer after which a request is sent again: it is lost if the server died."""


class ActingModel(Protocol):
    """The model of an actor's policy."""

    @property
    def version(self) -> ModelVersion:
        """Version of the model that computed the newest act; -1 before the first model."""
        ...

    def sync(self, timeout_s: float = 0.0) -> None:
        """Use the newest model from now on; wait for one at most `timeout_s`."""
        ...


class _Place:
    """A policy's place on the ladder of exploration, which depends on the number of actors."""

    def __init__(self, policy: Policy) -> None:
        self._spread: Callable[[int], None] | None = getattr(policy, "spread", None)
        self._n_actors = 0

    def update(self, n_actors: int) -> None:
        """Take the place in a run with this number of actors; 0 is unknown."""
        if self._spread is not None and n_actors not in {0, self._n_actors}:
            self._n_actors = n_actors
            self._spread(n_actors)


class OwnModel:
    """The policy's own model, which is replaced by the learner's newest one."""

    def __init__(self, policy: Policy, link: ActorLink) -> None:
        self._policy = policy
        self._place = _Place(policy)
        self._link = link
        self.version = ModelVersion(-1)

    def sync(self, timeout_s: float = 0.0) -> None:
        """Load the newest model."""
        info = self._link.latest_model("act", self.version, timeout_s)
        if info is not None:
            self._policy.sync_model(info)
            self._place.update(info.n_actors)
            self.version = info.version


class NoAnswer(TransportError):
    """The actor must finish before the server of inference has answered."""


class ServedModel:
    """The model of a server of inference, which computes for the policy: its `inference`.

    Waits for an answer as long as the actor need not finish, also while the server is restarted.
    """

    def __init__(
        self,
        policy: Policy,
        client: InferenceClient,
        peer: Peer,
        *,
        progress: Progress,
        finishing: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counter_of(policy)
        self._place = _Place(policy)
        self._client = client
        self._peer = peer
        self._progress = progress
        self._finishing = finishing
        self._clock = clock
        self._number = 0
        self._known = 0
        self.version = ModelVersion(-1)

    def __call__(self, inputs: Columns) -> Columns:
        """Return the server's outputs for these rows; raise `NoAnswer` if the actor must finish."""
        self._number += 1
        request = InferenceRequest(peer=self._peer, number=self._number, inputs=inputs)
        answer = self._answer(request)
        if answer.error:
            raise ConfigError(f"the server of inference refuses: {answer.error}")
        self.version = answer.version
        self._place.update(answer.n_actors)
        if self._counts is not None:
            self._counts.env_steps = max(self._counts.env_steps, answer.env_steps)
        return {name: np.array(rows) for name, rows in answer.outputs.items()}  # may be written to

    def sync(self, timeout_s: float = 0.0) -> None:
        """Ask for the version if the last act needed no network, as random acts do."""
        waits = timeout_s > 0 and self.version >= 0
        if self._known == self._number:
            with suppress(NoAnswer):
                self({})
        self._known = self._number
        if waits:
            self._client.receive(timeout_s)  # no answer is due: only a wait

    def _answer(self, request: InferenceRequest) -> InferenceAnswer:
        self._client.send(request)
        sent_at = self._clock()
        waited = False
        while True:
            answer = self._client.receive(_WAIT_S)
            if answer is not None and answer.number == request.number:
                break
            self._progress.waiting(True)
            waited = True
            if self._finishing():
                raise NoAnswer("the server of inference has not answered in time")
            if self._clock() - sent_at >= _REPEAT_S:
                self._client.send(request)
                sent_at = self._clock()
        if waited:
            self._progress.waiting(False)
        return answer
