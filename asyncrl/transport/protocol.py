"""The messages of the transport itself, and which messages a learner accepts.

Touches no sockets and no bytes: a link passes in what has arrived, and carries out what the table
decides.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from asyncrl.core.messages import (
    SOFTWARE,
    EvaluationReport,
    Experience,
    Hello,
    Message,
    ModelInfo,
    Peer,
    Report,
    fits,
)
from asyncrl.core.transport import Topic
from asyncrl.core.types import MOST_ACTORS, ActorId

_MOST_PEERS = MOST_ACTORS + 2
"""With the evaluator and the server of inference."""


def newest_with_credit(granted: int, acknowledged: int, window: int) -> int:
    """Return the last message of experience that may be sent; both ends ask it here."""
    return max(granted, acknowledged + window)


@dataclass(frozen=True, slots=True)
class Welcome:
    """Learner to actor: you may send experience."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Learner to actor: experience up to `seq` is handled, reports up to `reports` are read."""

    seq: int
    reports: int = 0
    delivered: int = 0
    """Deliveries to this actor before this message: those that have not arrived by now are
    lost."""

    granted: int = 0
    """The last message of experience that the actor may act for."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Learner to actor: finish and exit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Learner to actor: you are refused; disconnect."""

    reason: str


Subject = Literal[Topic, "env"]
"""What an actor requests: models of a topic, or changes of its environments."""


@dataclass(frozen=True, slots=True)
class Request:
    """Actor to learner: send the newest of this subject, as soon as it is newer than `have`."""

    peer: Peer
    subject: Subject
    have: int
    delivered: int = 0
    """Number of deliveries whose outcome the actor knows: they have arrived or are lost."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Learner to actor: the requested model."""

    subject: Topic
    model: ModelInfo

    @property
    def number(self) -> int:
        """Its version."""
        return self.model.version


@dataclass(frozen=True, slots=True)
class EnvDelivery:
    """Learner to actor: the requested change of environments."""

    subject: ClassVar[Subject] = "env"
    number: int
    kwargs: str
    """As JSON, which only the actor reads: values take more memory than text."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Actor to learner: these are my last messages, which of them have you received?"""

    peer: Peer
    sent: int
    """Number of the last message of experience."""

    reports: int = 0
    """Number of the last report."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Learner to actor: what you sent after these was lost, send it again."""

    seq: int
    reports: int = 0


@dataclass(slots=True)
class _PeerState:
    """What is known about one incarnation."""

    peer: Peer
    sends_experience: bool
    received: int = 0
    acknowledged: int = 0
    granted: int = 0
    reports: int = 0
    delivered: int = 0
    newest: dict[Subject, int] = field(default_factory=dict)
    asked_after: Resend | None = None

    @property
    def lacks(self) -> Resend:
        """Request for everything after what has been received."""
        return Resend(self.received, self.reports)


@dataclass(slots=True)
class PeerTable:
    """Decides which messages are accepted. Keeps the newest incarnation of each actor.

    A message is accepted if its sender has sent a `Hello` that fits this run, has not been refused,
    and has not been replaced by a newer incarnation. A peer that was refused gets the refusal again
    each time it sends something, since the first one may have been lost. Experience is accepted
    once and in order, and so are reports: what follows a gap is dropped, and the actor sends it
    again.
    """

    schema_hash: str
    window: int
    counters: Counter[str] = field(default_factory=Counter)
    """Messages that were not accepted, by reason."""

    refusals: deque[tuple[Peer, str]] = field(default_factory=deque)
    """Peers to refuse, and why; the link takes entries off as it carries them out."""

    resends: deque[tuple[Peer, Resend]] = field(default_factory=deque)
    """Peers that must send something again; the link takes entries off as it carries them out."""

    evaluators: set[ActorId] = field(default_factory=set)
    """Actors whose evaluations are accepted. The learner decides this, not the peer."""

    _states: dict[ActorId, _PeerState] = field(default_factory=dict)
    _refused: dict[ActorId, tuple[int, str]] = field(default_factory=dict)
    """The last incarnation that was refused, and why."""

    @property
    def peers(self) -> list[Peer]:
        """Admitted peers that have not been replaced or refused since."""
        return [state.peer for state in self._states.values()]

    def hears(self, peer: Peer) -> bool:
        """Whether exactly this incarnation is admitted; counts a message of any other one."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            return True
        if not self._is_out(peer):
            self.counters["unknown"] += 1
        return False

    def admits(self, message: Message) -> bool:
        """Decide on one message, in order of arrival; a repeated `Hello` is accepted again."""
        if isinstance(message, Hello):
            return self._admits_hello(message)
        if not self.hears(message.peer):
            return False
        state = self._states[message.peer.actor_id]
        if isinstance(message, Experience):
            return self._admits_experience(state, message)
        if isinstance(message, EvaluationReport) and state.peer.actor_id not in self.evaluators:
            self.counters["refused"] += 1
            self.refuse(state.peer, "an evaluation from a peer that is not an evaluator")
            return False
        return self._admits_report(state, message)

    def acknowledges(self, peer: Peer, seq: int, granted: int = 0) -> bool:
        """Record that messages up to `seq` are handled, and those up to `granted` may be started.

        Return False if that changes nothing, or the peer is not connected.
        """
        state = self._states.get(peer.actor_id)
        if state is None or state.peer != peer:
            return False
        before = state.acknowledged, state.granted
        if seq <= state.received:
            state.acknowledged = max(state.acknowledged, seq)
        state.granted = max(state.granted, granted)
        return (state.acknowledged, state.granted) != before

    def ack(self, peer: Peer) -> Ack:
        """Return the acknowledgement for an admitted peer."""
        state = self._states[peer.actor_id]
        return Ack(state.acknowledged, state.reports, state.delivered, state.granted)

    def may_be_sent(self, request: Request) -> bool:
        """Whether an admitted peer may be sent what it requests.

        Not if one was sent already and its outcome is unknown to the peer, which may just be slow.
        If that one is lost, an acknowledgement that follows it says so.
        """
        state = self._states[request.peer.actor_id]
        return request.delivered >= state.newest.get(request.subject, 0)

    def delivers(self, peer: Peer, subject: Subject) -> None:
        """Record that something is sent to a peer, for the first time or again."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            state.delivered += 1
            state.newest[subject] = state.delivered

    def syncs(self, message: Sync) -> None:
        """Request from an admitted peer what never arrived."""
        state = self._states[message.peer.actor_id]
        if state.received < message.sent or state.reports < message.reports:
            self.resends.append((message.peer, state.lacks))

    def refuse(self, peer: Peer, reason: str) -> None:
        """Refuse a peer, for the rest of this incarnation."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            del self._states[peer.actor_id]
        last, _ = self._refused.get(peer.actor_id, (-1, ""))
        if peer.incarnation > last and (last >= 0 or len(self._refused) < _MOST_PEERS):
            self._refused[peer.actor_id] = peer.incarnation, reason
        self.refusals.append((peer, reason))

    def _admits_hello(self, hello: Hello) -> bool:
        peer = hello.peer
        state = self._states.get(peer.actor_id)
        if (state is None or state.peer != peer) and self._is_out(peer):
            return False
        if reason := self._objection(hello):
            self.refuse(peer, reason)
            return False
        if state is None or state.peer != peer:
            if state is not None:
                self.refusals.append((state.peer, _replaced_by(peer)))
            self._states[peer.actor_id] = _PeerState(peer, bool(hello.schema_hash))
        return True

    def _objection(self, hello: Hello) -> str:
        """Return why a peer is refused, or an empty string."""
        actor_id = hello.peer.actor_id
        if not fits(hello.software):
            return (
                f"actor {actor_id} runs {hello.software[:80]!r}, the learner runs {SOFTWARE!r}:"
                " install the same versions on all hosts"
            )
        if hello.schema_hash not in {"", self.schema_hash}:
            return (
                f"actor {actor_id} would send segments of schema {hello.schema_hash[:80]!r},"
                f" the learner stores {self.schema_hash}: their settings or environments differ"
            )
        if actor_id not in self._states and len(self._states) >= _MOST_PEERS:
            return f"{len(self._states)} actors are connected already, which is the maximum"
        return ""

    def _admits_experience(self, state: _PeerState, message: Experience) -> bool:
        seq = message.seq
        if seq <= state.received:
            self.counters["duplicate"] += 1
            return False
        credit = newest_with_credit(state.granted, state.acknowledged, self.window)
        if not state.sends_experience or seq > credit:
            said = "announced none" if not state.sends_experience else "has no credit"
            self.counters["refused"] += 1
            self.refuse(state.peer, f"message {seq} of experience from a peer that {said}")
            return False
        if seq > state.received + 1:
            self._on_gap(state)
            return False
        state.received = seq
        return True

    def _admits_report(self, state: _PeerState, report: Report) -> bool:
        if report.seq <= state.reports:
            self.counters["duplicate"] += 1
            return False
        if report.seq > state.reports + 1:
            self._on_gap(state)
            return False
        state.reports = report.seq
        return True

    def _on_gap(self, state: _PeerState) -> None:
        """Request what is missing once, not again for each message after the gap."""
        self.counters["after_gap"] += 1
        if state.asked_after != state.lacks:
            state.asked_after = state.lacks
            self.resends.append((state.peer, state.lacks))

    def _is_out(self, peer: Peer) -> bool:
        """Whether a peer was refused or replaced; counts the message and repeats the refusal."""
        state = self._states.get(peer.actor_id)
        last, reason = self._refused.get(peer.actor_id, (-1, ""))
        if state is not None and peer.incarnation < state.peer.incarnation:
            self.counters["stale"] += 1
            reason = _replaced_by(state.peer)
        elif peer.incarnation <= last:
            self.counters["refused"] += 1
        else:
            return False
        self.refusals.append((peer, reason))
        return True


def _replaced_by(peer: Peer) -> str:
    return f"actor {peer.actor_id} has been replaced by its incarnation {peer.incarnation}"
