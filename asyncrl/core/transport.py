"""Delivery of messages between actors and learner, with backpressure. Does not read columns.

A transport is an address that can be sent to another process. Links belong to the thread that made
them, except for calls that say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from asyncrl.core.messages import EnvChange, Experience, Hello, Message, ModelInfo, Peer, Report

Topic = Literal["act", "evaluate"]
"""Which models a peer wants: every published one, or those to evaluate."""


class ActorLink(Protocol):
    """An actor's end. No call blocks for longer than its `timeout_s`."""

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        """Introduce this actor; False if the learner has not answered within `timeout_s`.

        Call it again to continue waiting. If the learner refuses, this or a later call raises
        `Refused`.
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
        """Send, or return False if there was no credit within `timeout_s` (reports need none).

        What was sent is delivered once and in order, as long as the connection lasts. Once it has
        broken, this or a later call raises `ConnectionLost`, and the actor must end.
        """
        ...

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        """Return the newest model if its version is above `newer_than`; never an older one."""
        ...

    def env_change(self, newer_than: int) -> EnvChange | None:
        """Return the newest change if its number is above `newer_than`; does not wait."""
        ...

    def stopping(self) -> bool:
        """Whether the learner has asked its actors to finish."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was sent is acknowledged; return False after the timeout."""
        ...

    def close(self) -> None:
        """Close the link; may be called again."""
        ...


class LearnerLink(Protocol):
    """The learner's end; `poll` and `acknowledge` belong to the receiving thread."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Rejected messages and connections, by reason, see `metrics.py`. Any thread."""
        ...

    def admit(self, peer: Peer, *, evaluates: bool = False) -> Transport:
        """Return what this incarnation connects to, including its key. Any thread.

        Evaluations are accepted only from a peer that `evaluates`.
        """
        ...

    def revoke(self, peer: Peer, *, fence: bool = False) -> None:
        """Note that this incarnation has ended: its key opens no further connection. Any thread.

        With `fence` it may still run, out of reach; its open connection is no longer heard.
        """
        ...

    def poll(self, timeout_s: float, waited: Callable[[], object] = ...) -> list[Message]:
        """Return what has arrived, or an empty list after `timeout_s` or a `wake`.

        `waited` is called after each wait, before messages are read.
        """
        ...

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        """Return the credit of this peer's messages up to `seq`, and grant those up to `granted`.

        A number below an earlier one has no effect.
        """
        ...

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Make this the newest model of a topic; it replaces any older one at once. Any thread."""
        ...

    def change_env(self, change: EnvChange) -> None:
        """Make this the newest change of environments; it replaces any older one. Any thread."""
        ...

    def wake(self) -> None:
        """Make a waiting `poll` return. Any thread."""
        ...

    def stop_actors(self) -> None:
        """Ask every actor to finish, including those that connect later. Any thread."""
        ...

    def close(self) -> None:
        """Close the link; may be called again."""
        ...


class Transport(Protocol):
    """A learner's address; `connect` is called in the actor's process."""

    def connect(self, peer: Peer) -> ActorLink:
        """Open an actor's end."""
        ...
