"""The messages of the transport itself, and which messages a learner accepts.

Touches no sockets and no bytes: a link passes in what has arrived, and carries out what the table
decides.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
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
class Ack:
    """Learner to actor: experience up to `seq` is handled, reports up to `reports` are read.

    The first one answers the `Hello`: the actor is admitted.
    """

    seq: int = 0
    reports: int = 0
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


@dataclass(slots=True)
class _PeerState:
    """What is known about one incarnation."""

    peer: Peer
    sends_experience: bool
    received: int = 0
    acknowledged: int = 0
    granted: int = 0
    reports: int = 0


@dataclass(slots=True)
class PeerTable:
    """Decides which messages are accepted. Keeps the newest incarnation of each actor.

    A message is accepted if its sender has sent a `Hello` that fits this run, has not been refused,
    and has not been replaced by a newer incarnation. Experience and reports are accepted in order
    and without a gap. A gap shows that the actor's connection broke and was made again. The actor
    notices that, too, and ends.
    """

    schema_hash: str
    window: int
    counters: Counter[str] = field(default_factory=Counter)
    """Messages that were not accepted, by reason."""

    refusals: deque[tuple[Peer, str]] = field(default_factory=deque)
    """Peers to refuse, and why; the link takes entries off as it carries them out."""

    evaluators: set[ActorId] = field(default_factory=set)
    """Actors whose evaluations are accepted. The learner decides this, not the peer."""

    _states: dict[ActorId, _PeerState] = field(default_factory=dict)
    _refused: dict[ActorId, int] = field(default_factory=dict)
    """The last incarnation that was refused."""

    @property
    def peers(self) -> list[Peer]:
        """Admitted peers that have not been replaced or refused since."""
        return [state.peer for state in self._states.values()]

    def hears(self, peer: Peer) -> bool:
        """Whether exactly this incarnation is admitted; counts a message of any other one."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            return True
        self._count_unheard(peer)
        return False

    def admits(self, message: Message) -> bool:
        """Decide on one message, in order of arrival."""
        if isinstance(message, Hello):
            return self._admits_hello(message)
        if not self.hears(message.peer):
            return False
        state = self._states[message.peer.actor_id]
        if why := self._objection_to(state, message):
            self.counters["refused"] += 1
            self.refuse(state.peer, why)
            return False
        is_experience = isinstance(message, Experience)
        if message.seq != 1 + (before := state.received if is_experience else state.reports):
            self.counters["after_gap"] += 1
            kind = "experience" if is_experience else "reports"
            self.refuse(state.peer, f"message {message.seq} of {kind} follows message {before}")
            return False
        if is_experience:
            state.received = message.seq
        else:
            state.reports = message.seq
        return True

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
        return Ack(state.acknowledged, state.reports, state.granted)

    def refuse(self, peer: Peer, reason: str) -> None:
        """Refuse a peer, for the rest of this incarnation."""
        state = self._states.get(peer.actor_id)
        if state is not None and state.peer == peer:
            del self._states[peer.actor_id]
        last = self._refused.get(peer.actor_id)
        if last is not None or len(self._refused) < _MOST_PEERS:
            self._refused[peer.actor_id] = max(peer.incarnation, -1 if last is None else last)
        self.refusals.append((peer, reason))

    def _admits_hello(self, hello: Hello) -> bool:
        peer, before = hello.peer, self._states.get(hello.peer.actor_id)
        if peer.incarnation <= (last := self._last(peer.actor_id)):
            self._count_unheard(peer)
            self.refusals.append((peer, _replaced_by(replace(peer, incarnation=last))))
            return False
        if reason := self._objection_to_hello(hello):
            self.refuse(peer, reason)
            return False
        if before is not None:
            self.refusals.append((before.peer, _replaced_by(peer)))
        self._states[peer.actor_id] = _PeerState(peer, bool(hello.schema_hash))
        return True

    def _objection_to_hello(self, hello: Hello) -> str:
        """Return why a peer is refused, or an empty string."""
        actor_id = hello.peer.actor_id
        if not fits(hello.software):
            return (
                f"actor {actor_id} runs {hello.software[:80]!r}, the learner runs {SOFTWARE!r}:"
                " install the same versions on all machines"
            )
        if hello.schema_hash not in {"", self.schema_hash}:
            return (
                f"actor {actor_id} would send segments of schema {hello.schema_hash[:80]!r},"
                f" the learner stores {self.schema_hash}: their settings or environments differ"
            )
        if actor_id not in self._states and len(self._states) >= _MOST_PEERS:
            return f"{len(self._states)} actors are connected already, which is the maximum"
        return ""

    def _objection_to(self, state: _PeerState, message: Experience | Report) -> str:
        """Return why an admitted peer may not send this, or an empty string."""
        if isinstance(message, EvaluationReport) and state.peer.actor_id not in self.evaluators:
            return "an evaluation from a peer that is not an evaluator"
        if not isinstance(message, Experience):
            return ""
        credit = newest_with_credit(state.granted, state.acknowledged, self.window)
        if state.sends_experience and message.seq <= credit:
            return ""
        said = "has no credit" if state.sends_experience else "announced none"
        return f"message {message.seq} of experience from a peer that {said}"

    def _last(self, actor_id: ActorId) -> int:
        """Return the last incarnation that was admitted or refused: the next one is newer."""
        state = self._states.get(actor_id)
        return max(self._refused.get(actor_id, -1), state.peer.incarnation if state else -1)

    def _count_unheard(self, peer: Peer) -> None:
        """Count a message of a peer that was replaced or refused, or is not admitted."""
        state = self._states.get(peer.actor_id)
        if state is not None and peer.incarnation < state.peer.incarnation:
            self.counters["stale"] += 1
        elif peer.incarnation <= self._last(peer.actor_id):
            self.counters["refused"] += 1
        else:
            self.counters["unknown"] += 1


def _replaced_by(peer: Peer) -> str:
    return f"actor {peer.actor_id} has been replaced by its incarnation {peer.incarnation}"
