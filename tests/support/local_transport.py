"""A transport within one process: the rules of the real one, without encoding.

Checks no arrays, and copies none but a model's: experience is passed by reference.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from asyncrl.core.errors import Refused, TransportClosed
from asyncrl.core.messages import Experience, Hello, Message, ModelInfo, Peer, Report
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.transport import Topic
from asyncrl.transport.protocol import PeerTable, newest_with_credit


@dataclass(slots=True)
class _Mailbox:
    """What the learner has sent to one actor."""

    welcomed: bool = False
    refusal: str | None = None
    acknowledged: int = 0
    granted: int = 0
    reports: int = 0


@dataclass(slots=True)
class _Shared:
    """State of both ends; `changed` guards it and is notified of every change."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    inbox: deque[Message] = field(default_factory=deque)
    mailboxes: dict[Peer, _Mailbox] = field(default_factory=dict)
    models: dict[Topic, ModelInfo] = field(default_factory=dict)
    finish: bool = False
    woken: bool = False


class LocalTransport:
    """Connects threads, or parts of one thread, of this process."""

    def __init__(self, schema: SegmentSchema, *, window: int = 8) -> None:
        """`window` is as in `ZmqTransportConfig`."""
        self.schema = schema
        self.window = window
        self._shared = _Shared()

    def listen(self) -> LocalLearnerLink:
        """Open the learner's end. Call it once."""
        return LocalLearnerLink(self._shared, self)

    def connect(self, peer: Peer) -> LocalActorLink:
        """Open an actor's end."""
        return LocalActorLink(self._shared, self, peer)


class LocalLearnerLink:
    """The learner's end."""

    def __init__(self, shared: _Shared, transport: LocalTransport) -> None:
        self._shared = shared
        self._table = PeerTable(transport.schema.hash(), transport.window)
        self.address = transport
        """What actors connect to, as with every transport."""
        self._closed = False

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages that were not accepted, by reason. Any thread."""
        return dict(self._table.counters)

    def admit(self, peer: Peer, *, evaluates: bool = False) -> LocalTransport:
        """Return what this incarnation of an actor connects to. Any thread."""
        if evaluates:
            self._table.evaluators.add(peer.actor_id)
        return self.address

    def revoke(self, peer: Peer, *, fence: bool = False) -> None:
        """Do nothing: within one process there are no keys."""

    def poll(self, timeout_s: float, waited: Callable[[], object] = lambda: None) -> list[Message]:
        """Return what has arrived, or nothing after `timeout_s` or a `wake`."""
        shared = self._shared
        with shared.changed:
            self._check_usable()
            if timeout_s > 0:
                shared.changed.wait_for(lambda: shared.inbox or shared.woken, timeout_s)
                waited()
            shared.woken = False
            messages = []
            while shared.inbox:
                message = shared.inbox.popleft()
                if self._handle(message):
                    messages.append(message)
            shared.changed.notify_all()
            return messages

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        """Return the credit of messages up to `seq`, and grant those up to `granted`."""
        with self._shared.changed:
            self._check_usable()
            if self._table.acknowledges(peer, seq, granted):
                mailbox, ack = self._mailbox(peer), self._table.ack(peer)
                mailbox.acknowledged, mailbox.granted = ack.seq, ack.granted
                self._shared.changed.notify_all()

    def refuse(self, peer: Peer, reason: str) -> None:
        """Disconnect a peer for good."""
        with self._shared.changed:
            self._check_usable()
            self._table.refuse(peer, reason)
            self._carry_out_refusals()

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Make this the newest model of a topic if it is newer than the current one. Any thread.

        The parameters are copied before it returns.
        """
        params = {name: np.array(array) for name, array in model.params.items()}
        for array in params.values():
            array.flags.writeable = False
        snapshot = replace(model, params=params)
        with self._shared.changed:
            newest = self._shared.models.get(topic)
            if newest is None or model.version > newest.version:
                self._shared.models[topic] = snapshot
            self._shared.changed.notify_all()

    def wake(self) -> None:
        """Make a waiting `poll` return. Any thread."""
        with self._shared.changed:
            self._shared.woken = True
            self._shared.changed.notify_all()

    def stop_actors(self) -> None:
        """Ask every actor to finish, including those that connect later. Any thread."""
        with self._shared.changed:
            self._shared.finish = True
            self._shared.changed.notify_all()

    def close(self) -> None:
        """Close the link; may be called again."""
        self._closed = True

    def _check_usable(self) -> None:
        if self._closed:
            raise TransportClosed("the learner's link is closed")

    def _handle(self, message: Message) -> bool:
        admitted = self._table.admits(message)
        self._carry_out_refusals()
        if admitted and isinstance(message, Hello):
            self._mailbox(message.peer).welcomed = True
        elif admitted and isinstance(message, Report):
            self._mailbox(message.peer).reports = message.seq
        return admitted

    def _carry_out_refusals(self) -> None:
        while self._table.refusals:
            peer, reason = self._table.refusals.popleft()
            self._mailbox(peer).refusal = reason
        self._shared.changed.notify_all()

    def _mailbox(self, peer: Peer) -> _Mailbox:
        return self._shared.mailboxes.setdefault(peer, _Mailbox())


class LocalActorLink:
    """An actor's end."""

    def __init__(self, shared: _Shared, transport: LocalTransport, peer: Peer) -> None:
        self._shared = shared
        self._transport = transport
        self._peer = peer
        self._introduced = False
        self._sent = 0
        self._reports = 0
        self._closed = False
        with shared.changed:
            self._mailbox = shared.mailboxes.setdefault(peer, _Mailbox())

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        """Introduce this actor; False if the learner has not answered within `timeout_s`."""
        self._check_usable()
        if not self._introduced:
            self._introduced = True
            self._put(message)
        return self._wait(lambda: self._mailbox.welcomed, timeout_s)

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        """Wait until message `seq` of experience is granted; False after `timeout_s`."""
        return self._wait(lambda: seq <= self._mailbox.granted, timeout_s)

    def send(self, message: Experience | Report, timeout_s: float) -> bool:
        """Send, or return False if there was no credit within `timeout_s` (reports need none)."""
        if isinstance(message, Experience):
            if not self._wait(lambda: self._has_credit(message.seq), timeout_s):
                return False
            self._sent = message.seq
        else:
            self._reports += 1
            message = replace(message, seq=self._reports)
        self._check_usable()
        self._put(message)
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        """Return the newest model if its version is above `newer_than`; never an older one."""
        return (
            self._newest(topic, newer_than)
            if self._wait(lambda: self._newest(topic, newer_than) is not None, timeout_s)
            else None
        )

    def stopping(self) -> bool:
        """Whether the learner has asked its actors to finish."""
        self._check_usable()
        return self._shared.finish and self._mailbox.welcomed

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was sent is acknowledged, and the learner has read the reports."""
        self._check_usable()
        mailbox = self._mailbox
        return self._wait(
            lambda: mailbox.acknowledged >= self._sent and mailbox.reports == self._reports,
            timeout_s,
        )

    def close(self) -> None:
        """Close the link; may be called again."""
        self._closed = True

    def _put(self, message: Message) -> None:
        with self._shared.changed:
            self._shared.inbox.append(message)
            self._shared.changed.notify_all()

    def _newest(self, topic: Topic, newer_than: int) -> ModelInfo | None:
        model = self._shared.models.get(topic)
        if model is None or not self._mailbox.welcomed or model.version <= newer_than:
            return None
        return model

    def _has_credit(self, seq: int) -> bool:
        mailbox = self._mailbox
        window = self._transport.window
        credit = newest_with_credit(mailbox.granted, mailbox.acknowledged, window)
        return mailbox.welcomed and seq <= credit

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; raise if this link can no longer be used."""
        with self._shared.changed:
            self._shared.changed.wait_for(
                lambda: condition() or self._mailbox.refusal is not None, max(0.0, timeout_s)
            )
            self._check_usable()
            return condition()

    def _check_usable(self) -> None:
        mailbox = self._mailbox
        if self._closed:
            raise TransportClosed(f"the link of {self._peer} is closed")
        if mailbox.refusal is not None:
            raise Refused(mailbox.refusal)
