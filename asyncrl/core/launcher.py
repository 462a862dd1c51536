"""How an actor comes to life, and how one hears of its end. Does not know what actors do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.core.messages import Peer


class Progress(Protocol):
    """Where a running actor leaves word that it is alive; costs less than a microsecond."""

    def turn(self, produced: int) -> None:
        """Note the end of one turn, and the transitions produced so far."""
        ...

    def waiting(self, waiting: bool) -> None:
        """Note that the actor waits, and so makes no turns; or no longer does.

        It waits for the learner, or until its environments have been made anew.
        Said again and again while it waits: an actor that is stopped says nothing.
        """
        ...

    def finishing(self) -> bool:
        """Whether the launcher asks this actor to finish while the run goes on."""
        ...


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What an actor has left word of, readable also after it was killed."""

    turns: int
    produced: int
    waiting: bool
    waits: int = 0
    """How often it has said whether it waits; with `turns`, its signs of life."""


ActorBody = Callable[[Progress], None]
"""What an actor runs. It is pickled by cloudpickle, and returns to end the actor well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorExit:
    """The end of one actor's process."""

    peer: Peer
    code: int
    """0 if the body returned; 1 if it raised; minus the signal's number if one ended it."""

    text: str = ""
    """The actor's own traceback, or where its threads stood when it crashed; may be empty."""

    error: str = ""
    """Class and message of the exception that the body raised, in one line; else empty."""

    began: bool = True
    """False if the system had no process, or not all that one needs, for the actor; then `error`
    says what was lacking."""

    last: ProgressReport = ProgressReport(0, 0, waiting=False)

    peak_bytes: int = 0
    """The most memory that it held at once; 0 if that is not known."""

    @property
    def by_signal_to_job(self) -> bool:
        """Whether it was a signal that schedulers send to all processes of a job at once."""
        return -self.code in {signal.SIGTERM, signal.SIGHUP}


class Launcher(Protocol):
    """Brings actors to life; owned by one thread, which is the only one to call it."""

    def launch(self, peer: Peer, body: ActorBody) -> None:
        """Start an actor and return at once."""
        ...

    def exits(self, timeout_s: float) -> list[ActorExit]:
        """Return the actors that have ended, each once; wait at most `timeout_s` for one."""
        ...

    def progress(self, peer: Peer) -> ProgressReport:
        """Return what a living actor has left word of."""
        ...

    def memory_bytes(self, peer: Peer) -> int:
        """Return the memory that a living actor holds now; 0 where the system does not tell."""
        ...

    def finish(self, peer: Peer) -> None:
        """Ask a living actor to send what it has and end with code 0; do not wait for it."""
        ...

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        """End an actor and all it has started at once; its exit follows in `exits`.

        `with_stacks` first has it write down where its threads stand, if it still can.
        """
        ...

    def close(self) -> None:
        """Kill what is left, release everything; may be called again."""
        ...
