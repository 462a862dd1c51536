"""Moving messages between actors and learner, with backpressure. Does not read columns.

A transport is an address that can be sent to another process. Links belong to the thread that
made them, except for the calls that say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from asyncrl.core.messages import Experience, Hello, Message, ModelInfo, Peer, Report

Topic = Literal["act", "evaluate"]
"""Which models a peer wants: every published one, or those that are to be evaluated."""


class ActorLink(Protocol):
    """An actor's end. No call blocks for longer than its `timeout_s`."""

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        """Introduce oneself; False if the learner has not let one in in time, and may yet.

        Called again, it goes on waiting. A learner that does not agree makes this or a later call
        raise `Refused`.
        """
        ...

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        """Wait until message `seq` of experience is granted; False after `timeout_s`.

        An actor calls it before it acts for that message, so that it acts with the newest model and
        its message is stored at once. May return False early when a model has arrived, so that the
        caller can load it first. A message without a grant is accepted, too.
        """
        ...

    def send(self, message: Experience | Report, timeout_s: float) -> bool:
        """Send, or return False if there was no credit in time (reports need none).

        What has been sent arrives, once and in order, unless one of both ends goes.
        """
        ...

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        """Return the newest model if its version is above `newer_than`; never an older one."""
        ...

    def stopping(self) -> bool:
        """Whether the learner has asked its actors to finish."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was sent is acknowledged; False if it was not in time."""
        ...

    def close(self) -> None:
        """Let go of the link; may be called again."""
        ...


class LearnerLink(Protocol):
    """The learner's end; `poll` and `acknowledge` belong to the receiving thread."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages and connections that did not count, by reason, see `metrics.py`. Any thread."""
        ...

    def admit(self, peer: Peer, *, evaluates: bool = False) -> Transport:
        """Return what this life of an actor is to connect to, its key included. Any thread.

        Evaluations are taken from those who `evaluates`, and from nobody else.
        """
        ...

    def revoke(self, peer: Peer) -> None:
        """Note that this life of an actor is over: its key opens no connection more. Any thread."""
        ...

    def poll(self, timeout_s: float, waited: Callable[[], object] = ...) -> list[Message]:
        """Return what has arrived, or nothing after `timeout_s` or a `wake`.

        `waited` is called whenever it has waited, before it looks at what has come.
        """
        ...

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        """Return the credit of this peer's messages up to `seq`, and grant those up to `granted`.

        A number below an earlier one has no effect.
        """
        ...

    def refuse(self, peer: Peer, reason: str) -> None:
        """Turn a peer away."""
        ...

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Make this the newest model of a topic, at once replacing any older one. Any thread."""
        ...

    def wake(self) -> None:
        """Make a `poll` that is waiting return. Any thread."""
        ...

    def stop_actors(self) -> None:
        """Ask every actor, also those that connect later, to finish. Any thread."""
        ...

    def close(self) -> None:
        """Let go of the link; may be called again."""
        ...


class Transport(Protocol):
    """An address; `connect` is called in the actor's process."""

    def listen(self) -> LearnerLink:
        """Open the learner's end. Called once."""
        ...

    def connect(self, peer: Peer) -> ActorLink:
        """Open an actor's end."""
        ...
