"""What a transport says for itself, and which messages a learner lets in.

Touches no socket and no bytes: a link feeds the table what has arrived and carries out what it
is told to.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from asyncrl.core.messages import (
    SOFTWARE,
    EvaluationReport,
    Experience,
    Hello,
    Message,
    ModelInfo,
    Peer,
    Report,
)
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId

_MOST_PEERS = 4096


@dataclass(frozen=True, slots=True)
class Welcome:
    """Learner to actor: you may send experience."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Learner to actor: experience up to `seq` is dealt with, reports up to `reports` are read."""

    seq: int
    reports: int = 0
    models: int = 0
    """Models that were sent to this actor before: what has not come by now is lost."""

    granted: int = 0
    """The last message of experience that the actor may act for."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Learner to actor: come to an end."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Learner to actor: go away."""

    reason: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Actor to learner: one model of this topic, as soon as there is one above `have`."""

    peer: Peer
    topic: Topic
    have: int
    models: int = 0
    """Models of which it knows what became of them: they have come, or are lost."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Learner to actor: the model that was asked for."""

    topic: Topic
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class Sync:
    """Actor to learner: this is the last I have sent, what of it have you got?"""

    peer: Peer
    sent: int
    """The last message of experience before it."""

    reports: int = 0
    """The last report before it."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Learner to actor: what came after these has been lost on its way, send it again."""

    seq: int
    reports: int = 0


@dataclass(slots=True)
class _PeerState:
    """What is known of one incarnation."""

    peer: Peer
    sends_experience: bool
    received: int = 0
    acknowledged: int = 0
    granted: int = 0
    reports: int = 0
    models: int = 0
    newest_model: dict[Topic, int] = field(default_factory=dict)
    asked_after: Resend | None = None

    @property
    def lacks(self) -> Resend:
        """What to ask for when something is missing."""
        return Resend(self.received, self.reports)


@dataclass(slots=True)
class PeerTable:
    """Decides whose messages count. Keeps one life for each actor id, the newest.

    A message counts if its sender has said a `Hello` that agrees with us, has not been turned
    away, and is not an earlier life of an actor that has come back since. Whoever is out is told
    so each time it speaks, for it may not have heard it. Experience counts once, and in order, and
    so do reports: what follows a gap is left for the actor to send again.
    """

    schema_hash: str
    window: int
    counters: Counter[str] = field(default_factory=Counter)
    """Messages that did not count, by reason."""

    refusals: deque[tuple[Peer, str]] = field(default_factory=deque)
    """Who is to be turned away, and why; whoever carries it out takes it off."""

    resends: deque[tuple[Peer, Resend]] = field(default_factory=deque)
    """Who is to send something again; whoever carries it out takes it off."""

    evaluators: set[ActorId] = field(default_factory=set)
    """Whose evaluations count. Whoever lets somebody in says so, and not who comes."""

    _states: dict[ActorId, _PeerState] = field(default_factory=dict)
    _refused: dict[ActorId, tuple[int, str]] = field(default_factory=dict)
    """The last life that was turned away, and why."""

    @property
    def peers(self) -> list[Peer]:
        """Those who have been let in and not been replaced or turned away since."""
        return [state.peer for state in self._states.values()]

    def hears(self, peer: Peer) -> bool:
        """Whether this very life has been let in; counted if it has not."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            return True
        if not self._is_out(peer):
            self.counters["unknown"] += 1
        return False

    def admits(self, message: Message) -> bool:
        """Decide on one message, in the order of arrival; a repeated `Hello` is let in again."""
        if isinstance(message, Hello):
            return self._admits_hello(message)
        if not self.hears(message.peer):
            return False
        state = self._states[message.peer.actor_id]
        if isinstance(message, Experience):
            return self._admits_experience(state, message)
        if isinstance(message, EvaluationReport) and state.peer.actor_id not in self.evaluators:
            self.counters["refused"] += 1
            self.refuse(state.peer, "an evaluation from a peer that is not to evaluate")
            return False
        return self._admits_report(state, message)

    def acknowledges(self, peer: Peer, seq: int, granted: int = 0) -> bool:
        """Note that messages up to `seq` are dealt with, and those up to `granted` may be begun.

        False if that is no news, or there is nobody to tell.
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
        """Return how far the messages of a peer that is heard have got."""
        state = self._states[peer.actor_id]
        return Ack(state.acknowledged, state.reports, state.models, state.granted)

    def may_be_sent(self, request: ModelRequest) -> bool:
        """Whether a peer that is heard may be sent the model that it asks for.

        Not if it has been sent one, and does not know yet what became of it: it may be slow, and
        need not be sent again. If it is lost, an acknowledgement says so, which comes behind it.
        """
        state = self._states[request.peer.actor_id]
        return request.models >= state.newest_model.get(request.topic, 0)

    def delivers(self, peer: Peer, topic: Topic) -> None:
        """Note that a peer is being sent a model, for the first time or again."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            state.models += 1
            state.newest_model[topic] = state.models

    def syncs(self, message: Sync) -> None:
        """Ask a peer that is heard for what never came."""
        state = self._states[message.peer.actor_id]
        if state.received < message.sent or state.reports < message.reports:
            self.resends.append((message.peer, state.lacks))

    def refuse(self, peer: Peer, reason: str) -> None:
        """Turn a peer away, for as long as this life of it lasts."""
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
        """Return why a peer is not let in, or nothing."""
        actor_id = hello.peer.actor_id
        if hello.software != SOFTWARE:
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
            return f"{len(self._states)} actors are here already"
        return ""

    def _admits_experience(self, state: _PeerState, message: Experience) -> bool:
        seq = message.seq
        if seq <= state.received:
            self.counters["duplicate"] += 1
            return False
        if not state.sends_experience or seq > state.acknowledged + self.window:
            said = "said it would send none" if not state.sends_experience else "has no credit"
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
        """Ask for what is missing, once, and not again for each message that follows the gap."""
        self.counters["after_gap"] += 1
        if state.asked_after != state.lacks:
            state.asked_after = state.lacks
            self.resends.append((state.peer, state.lacks))

    def _is_out(self, peer: Peer) -> bool:
        """Whether one who is not in may not come in; it is counted, and told why."""
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
