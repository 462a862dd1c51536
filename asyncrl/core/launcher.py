"""The contract of what starts actors and reports their exit. Does not know what actors do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId


class Progress(Protocol):
    """Where a running actor sends its heartbeats; costs less than a microsecond."""

    def turn(self, produced: int) -> None:
        """Count a finished step, with the number of transitions produced so far."""
        ...

    def waiting(self, waiting: bool) -> None:
        """Record that the actor waits, and so makes no steps; or no longer does.

        It waits for the learner, or for the backoff before its environments are rebuilt. Call it
        repeatedly while it waits: an actor that is stopped sends no heartbeat.
        """
        ...

    def finishing(self) -> bool:
        """Whether the launcher asks this actor to finish during the run."""
        ...


class Killed(SystemExit):
    """Raised in the thread of an actor that is killed, in its next instruction of Python."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The heartbeats of an actor, readable even after it was killed."""

    turns: int
    produced: int
    waiting: bool
    waits: int = 0
    """Number of calls of `waiting`; with `turns`, its heartbeats."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs."""

    host: str
    pid: int = 0
    """0 while it is not known."""


class Spec(Protocol):
    """What a launcher carries to an actor: of what it is built, as plain data, and what it runs.

    It is pickled by cloudpickle, unless the actor is a thread.
    """

    def run(self, peer: Peer, progress: Progress) -> None:
        """Run the actor; when this returns, it exits with code 0."""
        ...

    def instructions(self) -> dict[str, Any]:
        """Return what a host needs, as JSON, that makes the spec of this actor itself."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorExit:
    """The exit of an actor's process."""

    peer: Peer
    code: int
    """0 if `run` returned; 1 if it raised; minus the signal's number if a signal killed it."""

    text: str = ""
    """The actor's own traceback, or the stacks of its threads at a crash; may be empty."""

    error: str = ""
    """Class and message of the exception that `run` raised, in one line; otherwise empty."""

    began: bool = True
    """False if the system had no process, or lacked another resource, for the actor; `error` says
    which."""

    last: ProgressReport = ProgressReport(0, 0, waiting=False)

    peak_bytes: int = 0
    """Peak memory of the process; 0 if unknown."""

    gone: str = ""
    """Why the actor's host took it away, if it did: no failure of the actor. Then its code may be
    unknown (1), and it may still run where nothing reaches it."""

    @property
    def by_signal_to_job(self) -> bool:
        """Whether it was a signal that schedulers send to all processes of a job."""
        return -self.code in {signal.SIGTERM, signal.SIGHUP}


class Launcher(Protocol):
    """Starts actors. One thread owns it, and only that thread calls it."""

    def has_room(self, actor_id: ActorId, actors: int) -> bool:
        """Whether this slot's actor, of this number of actors of the run, can be launched now."""
        ...

    def launch(self, peer: Peer, spec: Spec) -> None:
        """Start an actor and return at once."""
        ...

    def exits(self, timeout_s: float) -> list[ActorExit]:
        """Return the actors that have exited, each once; wait at most `timeout_s` for one."""
        ...

    def progress(self, peer: Peer) -> ProgressReport:
        """Return the heartbeats of a running actor."""
        ...

    def memory_bytes(self, peer: Peer) -> int:
        """Return the memory that a running actor holds; 0 if the system does not report it."""
        ...

    def place(self, peer: Peer) -> Place:
        """Return where a running actor runs."""
        ...

    def finish(self, peer: Peer) -> None:
        """Ask a running actor to send what it has and exit with code 0; do not wait for it."""
        ...

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        """Kill an actor and all that it has started; its exit follows in `exits`.

        `with_stacks` first lets it write the stacks of its threads, if it still can.
        """
        ...

    def close(self) -> None:
        """Kill what still runs and release everything; may be called again."""
        ...
