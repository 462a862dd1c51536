"""A host: the process that starts a learner's actors on one machine.

It owns the launcher of that machine and does what the learner's `HostLauncher` asks. It reports the
actors' heartbeats, memory and exits. When it has not heard of its learner for a while, it ends what
it has started. Does not know what actors do.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from asyncrl.core.errors import ConfigError, Refused, TransportError, describe_error
from asyncrl.core.host_link import HostLine
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Launcher, Spec
from asyncrl.core.messages import Peer
from asyncrl.fleet.host_messages import (
    Conversation,
    Plain,
    decode,
    peer_of,
    plain_actor,
    plain_exit,
)

logger = logging.getLogger(__name__)

_TURN_S = 0.05
_REPORT_S = 0.25
_LONGEST_LOOK_S = 1.0
"""Maximum time between two turns that counts as the learner's silence: after a longer one, this
process itself was stopped."""

_EARLY_S = 5.0
"""Seconds without a first answer after which the host says why there may be none."""

_FAREWELL_S = 2.0
"""Seconds for the last messages to be acknowledged."""

Outcome = Literal["ended", "left", "not joined", "lost"]
"""The run has ended; this host was asked to leave it, or to end before it had joined; the learner
had given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimeouts:
    """How long a host waits, in seconds."""

    first_answer_s: float = 60.0
    """For the learner's first answer."""

    learner_s: float
    """For any message of the learner, later."""

    stop_s: float
    """For actors that were asked to finish."""


class Host:
    """The session of a host: from its request to join until the learner no longer wants it.

    Args:
        launcher: Starts actors on this machine. The caller closes it.
        line: The connection to the learner.
        facts: What the learner decides on, with `host`, a name, and `room`, the number of actors.
        make_spec: Returns an actor's spec: of the learner's welcome and its order.
        offer_key: Makes the key pair of an actor to come, and returns the public key. The `key` of
            an order says whose it is.
        timeouts: How long to wait.
        clock: Measures silence.
    """

    def __init__(
        self,
        launcher: Launcher,
        line: HostLine,
        facts: Plain,
        make_spec: Callable[[Peer, Plain, Plain], Spec],
        timeouts: HostTimeouts,
        *,
        offer_key: Callable[[], str],
        on_welcome: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._line = line
        self._make_spec = make_spec
        self._timeouts = timeouts
        self._on_welcome = on_welcome
        self._clock = clock
        self._talk = Conversation()
        self._talk.say(join=dict(facts))
        self._offer_key = offer_key
        self._talk.say(keys=[offer_key() for _ in range(facts["room"])])
        self._running: set[Peer] = set()
        self._welcome: Plain | None = None
        self._outcome: Outcome | None = None
        self._silent_s = 0.0
        self._looked_at = clock()
        self._spoke_at = float("-inf")
        self._has_warned = False
        self._sent_at: object = None
        """The time in the learner's newest message, by its clock."""
        self._read_at = 0.0

    def run(self, interrupter: Interrupter) -> Outcome:
        """Serve the learner; return how it ended. Actors that still run are the caller's to end.

        Raises `Refused` if the learner does not want this host, and `TransportError` if it was not
        heard for too long.
        """
        while self._outcome is None:
            self._turn()
            if interrupter.is_set:
                return self._leave(interrupter.reason or "")
        if self._outcome == "ended":
            self._speak()  # acknowledges the end
        return self._outcome

    def _turn(self) -> None:
        for ended in self._launcher.exits(0.0):
            self._on_exit(ended)
        for data in self._line.receive(_TURN_S):
            self._silent_s = 0.0
            message = decode(data)
            self._sent_at, self._read_at = message.get("at"), self._clock()
            self._on(message)
        now = self._clock()
        self._silent_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        self._check_learner()
        if self._outcome is None and (self._talk.has_news or now - self._spoke_at >= _REPORT_S):
            self._speak()

    def _leave(self, why: str) -> Outcome:
        """Let actors finish, kill them after the timeout, and report their exits."""
        self._talk.say(leaves=why)
        for peer in self._running:
            self._launcher.finish(peer)
        deadline = self._clock() + self._timeouts.stop_s
        while self._running and self._clock() < deadline and self._outcome is None:
            self._turn()
        for peer in self._running:
            self._launcher.kill(peer)
        deadline = self._clock() + _FAREWELL_S
        while self._clock() < deadline and self._outcome is None:
            if not self._running and self._talk.is_acknowledged:
                break
            self._turn()
        return "left" if self._welcome is not None else "not joined"

    def _on_exit(self, ended: ActorExit) -> None:
        self._running.discard(ended.peer)
        self._talk.say(**plain_exit(ended))
        self._talk.say(keys=[self._offer_key()])

    def _on(self, message: Plain) -> None:
        match message:
            case {"refused": str(why)}:
                raise Refused(why)
            case {"lost": str()}:
                self._outcome = "lost"
            case _:
                for item in self._talk.take(message):
                    self._on_item(item)

    def _on_item(self, item: Plain) -> None:
        match item:
            case {"welcome": dict(welcome)}:
                self._welcome = welcome
                self._on_welcome()
            case {"launch": plain, "order": dict(order)}:
                self._launch(peer_of(plain), order)
            case {"kill": plain, "stacks": bool(with_stacks)}:
                self._launcher.kill(peer_of(plain), with_stacks=with_stacks)
            case {"finish": plain}:
                if (peer := peer_of(plain)) in self._running:
                    self._launcher.finish(peer)
            case {"end": str()}:
                self._outcome = "ended"

    def _launch(self, peer: Peer, order: Plain) -> None:
        try:
            spec = self._make_spec(peer, self._welcome or {}, order)
            self._launcher.launch(peer, spec)
        except ConfigError as error:
            why = describe_error(error)
            self._on_exit(ActorExit(peer=peer, code=1, error=why, began=False))
        else:
            self._running.add(peer)

    def _speak(self) -> None:
        self._spoke_at = self._clock()
        reports: list[Any] = []
        for peer in self._running:
            with contextlib.suppress(KeyError):  # it has just exited
                heartbeats = self._launcher.progress(peer)
                held_bytes = self._launcher.memory_bytes(peer)
                pid = self._launcher.place(peer).pid
                reports.append(plain_actor(peer, heartbeats, held_bytes, pid))
        echo = [self._sent_at, self._spoke_at - self._read_at]
        self._line.send(self._talk.message(actors=reports, echo=echo))

    def _check_learner(self) -> None:
        """Raise if the learner was not heard for too long."""
        joined = self._welcome is not None
        if not (joined or self._has_warned) and self._silent_s > _EARLY_S:
            self._has_warned = True
            limit_s = self._timeouts.first_answer_s
            why = self._line.why_silent()
            logger.warning("the learner has not answered yet; %s (waits %g s)", why, limit_s)
        limit_s = self._timeouts.learner_s if joined else self._timeouts.first_answer_s
        if self._silent_s > limit_s:
            what = "has not been heard" if joined else "has not answered"
            ends = "its actors" if joined else "without having joined"
            raise TransportError(
                f"the learner {what} for {self._silent_s:.0f} s, so this host ends {ends}; "
                f"{self._line.why_silent()}"
            )
