"""Supervises actors: start, watch, restart within a budget, stop with a deadline.

Runs in a separate thread, so that it notices a dead actor while the learner optimises. It decides
nothing itself: `restart_policy.py` does. Does not know what actors do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, start_thread, waited
from asyncrl.core.launcher import ActorExit, Launcher, Place, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import MOST_ACTORS, ActorId
from asyncrl.fleet.config import ActorManagerConfig
from asyncrl.fleet.restart_policy import (
    RAISE_LIMIT,
    Cause,
    Drop,
    GiveUp,
    MemoryWatch,
    RestartPolicy,
    at_limit,
    cause_of,
    hung,
    lost_connection,
    overstayed,
    too_large_to_start,
)

logger = logging.getLogger(__name__)

MakeSpec = Callable[[Peer], Spec]
"""Makes what one incarnation of an actor runs."""

_WATCH_S = 0.05
_SAME_SIGNAL_S = 1.0
"""Seconds to wait for a signal that was sent to the whole job; the learner may be in native
code."""

_FINISH_S = 30.0
"""Timeout for a launcher to close, in addition to the time for killed actors to die."""

_HELPERS_S = 2.0
"""Seconds that the run's other processes have to exit after the last actor. They have nothing to
send, and one that plays a long evaluation sees no request to exit before its end."""

_LONGEST_LOOK_S = 1.0
"""Maximum time between two checks that counts towards an actor's timeout. After a longer gap this
process did not run either: it was stopped or the machine was asleep, and so were the actors."""


ActorState = Literal[
    "to start", "starting", "running", "waiting", "leaving", "ending", "left", "given up"
]
"""`to start`: it waits for its backoff, or for room on a host. `waiting`: for the learner.
`leaving`: it sends what it has. `ending`: it was killed. `left`: on request. `given up`: the run
continues without it, see `supervision.restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus:
    """One slot of a run, and the actor in it."""

    actor_id: ActorId
    incarnation: int
    """Of its newest actor; -1 before the first."""

    state: ActorState
    place: Place
    """Where its newest actor runs, or has run."""


_NOWHERE = Place("")


@dataclass(slots=True)
class _Slot:
    incarnation: int = -1
    alive: bool = False
    dropped: bool = False
    wanted: bool = True
    """Whether an actor belongs here."""

    leaves: bool = False
    """Whether its actor was asked to finish, because the target is lower."""

    begins: bool = True
    """Whether its next incarnation is no restart: the first one, or one after it had left."""

    restart_at: float | None = 0.0
    place: Place = _NOWHERE
    signs: tuple[int, int] = (0, 0)
    waits: bool = False
    silent_s: float = 0.0
    killed_because: Cause | None = None
    held_bytes: int = 0
    """Memory that it held when it was asked to finish; 0 before."""

    replaces: bool = False
    """Whether the previous incarnation ended at the memory limit, on request."""

    memory: MemoryWatch = field(default_factory=MemoryWatch)


class ActorManager:
    """Keeps every slot running until it is stopped or the restart policy gives up.

    Slots with a name, such as the evaluator's, are not actors. The number of actors may change
    during the run. Actors that are added have the spec of actor 0, made for their own slot.
    """

    def __init__(
        self,
        launcher: Launcher,
        specs: Mapping[ActorId, MakeSpec],
        config: ActorManagerConfig,
        interrupter: Interrupter,
        *,
        names: Mapping[ActorId, str] | None = None,
        most_actors: int = MOST_ACTORS,
        first_incarnation: int = 0,
        on_exit: Callable[[ActorExit], None] = lambda _: None,
        on_restart: Callable[[ActorId, bool], None] = lambda _, __: None,
        on_drop: Callable[[ActorId], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._specs = specs
        self._config = config
        self._interrupter = interrupter
        self._names = names or {}
        self._on_exit = on_exit
        self._on_restart = on_restart
        self._on_drop = on_drop
        self._clock = clock
        self._policy = RestartPolicy(config.restart, seed=0)
        self._slots = {actor_id: _Slot(first_incarnation - 1) for actor_id in specs}
        self._first_incarnation = first_incarnation
        self._most_actors = most_actors
        self._sizing = threading.Lock()
        self._size = len([*self._actors()])
        self.asked = 0
        """Number of actors that `resize` has asked for last; 0 before."""
        self._finishing = threading.Event()
        self._stop_now = threading.Event()
        self._kills = True
        self._looked_at = clock()
        self._memory_warned = False
        self._thread = CrashForwardingThread(interrupter, self._run, name="asyncrl-manager")

    def start(self) -> None:
        """Start every actor and begin to watch."""
        start_thread(self._thread)

    @property
    def next_incarnation(self) -> int:
        """The next unused incarnation: with it a resumed run's actors begin."""
        return 1 + max((slot.incarnation for slot in [*self._slots.values()]), default=-1)

    @property
    def alive(self) -> int:
        """Number of actors whose processes are running."""
        return sum(slot.alive for slot in [*self._slots.values()])

    @property
    def size(self) -> int:
        """Target number of actors. Any thread."""
        return self._size

    def resize(self, actors: int) -> None:
        """Let the run have this number of actors from now on. Any thread; does not wait.

        Actors that become too many, those with the highest numbers, send what they have and exit.
        Raises `ConfigError` if the number is not possible or the run ends.
        """
        if not 1 <= actors <= self._most_actors:
            raise ConfigError(
                f"this run was started for 1 to {self._most_actors} actors; {actors} are too many"
                if actors > 0
                else f"a run must keep at least 1 actor, got {actors}; Ctrl-C or SIGTERM ends it"
            )
        if self._finishing.is_set() or self._interrupter.is_set:
            raise ConfigError("the run is ending, so its number of actors cannot change")
        with self._sizing:
            self._size = self.asked = actors

    def fleet(self) -> list[ActorStatus]:
        """Return each actor's slot, also of those that have left. Any thread."""
        return [
            ActorStatus(
                actor_id=actor_id,
                incarnation=slot.incarnation,
                state=_state_of(slot),
                place=slot.place,
            )
            for actor_id, slot in sorted(self._actors())
        ]

    def expect_ends(self) -> None:
        """From now on actors exit because they were asked to, and are not restarted."""
        self._finishing.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """Wait until all actors have exited; kill the rest after the timeout; may be called again.

        A second signal ends the wait.

        Raises `ActorFailed` if a launcher is stuck and does not release them.
        """
        self.expect_ends()
        if self._thread.ident is None:
            self._launcher.close()
        wait_s = self._config.stop_timeout_s if timeout_s is None else timeout_s
        try:
            if self._thread.is_alive():
                waited(self._interrupter, self._thread.has_ended, wait_s)
            self._kills &= wait_s > 0 and not self._interrupter.hurry
        except BaseException:  # a second signal: actors killed now have not failed
            self._kills = False
            raise
        finally:
            self._stop_now.set()
        limit_s = self._config.stop_timeout_s + _FINISH_S
        if self._thread.is_alive():
            self._thread.join(limit_s)
        if self._thread.is_alive():
            raise ActorFailed(
                f"the thread that watches actors did not end within {limit_s:g} s after the order "
                "to kill them, and is abandoned; make sure that all methods of the launcher return"
            )

    def _run(self) -> None:
        """Watch until every actor has exited, then close the launcher in any case."""
        alone_s = 0.0
        try:
            while not self._stop_now.is_set() and alone_s < _HELPERS_S:
                if self._finishing.is_set() and not self.alive:
                    return
                self._follow_size()
                self._fill_slots()
                self._take_exits(self._launcher.exits(_WATCH_S))
                passed_s = self._time_passed_s()
                self._end_hanging(passed_s)
                self._replace_large(passed_s)
                if self._finishing.is_set() and not any(slot.alive for _, slot in self._actors()):
                    alone_s += passed_s
            self._kill_remaining()
        finally:
            self._launcher.close()

    def _follow_size(self) -> None:
        """Add slots, or let the actors with the highest numbers leave."""
        if self._finishing.is_set():
            return
        wanted = [i for i, slot in self._actors() if slot.wanted and not slot.dropped]
        for actor_id in sorted(wanted)[self._size :]:
            slot = self._slots[actor_id]
            slot.wanted, slot.restart_at = False, None
            if slot.alive and not slot.killed_because:
                self._launcher.finish(Peer(actor_id=actor_id, incarnation=slot.incarnation))
                slot.leaves = True
        for _ in range(self._size - len(wanted)):
            self._add_slot()

    def _add_slot(self) -> None:
        """Use the first slot that an actor has left, or a new one."""
        left = [i for i, slot in self._actors() if not (slot.wanted or slot.dropped)]
        actor_id = min(left, default=ActorId(1 + max(i for i, _ in self._actors())))
        slot = self._slots.setdefault(actor_id, _Slot(self._first_incarnation - 1))
        slot.wanted = True
        if not slot.alive:  # otherwise it starts again when it has left
            slot.begins, slot.restart_at = True, self._clock()

    def _actors(self) -> list[tuple[ActorId, _Slot]]:
        return [(i, slot) for i, slot in [*self._slots.items()] if i not in self._names]

    def _spec(self, peer: Peer) -> Spec:
        return self._specs.get(peer.actor_id, self._specs[ActorId(0)])(peer)

    def _fill_slots(self) -> None:
        now = self._clock()
        for actor_id, slot in self._slots.items():
            due = slot.restart_at is not None and slot.restart_at <= now
            ends = self._finishing.is_set() or self._interrupter.urgent
            if due and not ends and self._launcher.has_room(actor_id, self.size):
                slot.incarnation += 1
                peer = Peer(actor_id=actor_id, incarnation=slot.incarnation)
                self._launcher.launch(peer, self._spec(peer))
                slot.alive, slot.restart_at, slot.place = True, None, _NOWHERE
                slot.signs, slot.silent_s, slot.killed_because = (0, 0), 0.0, None
                slot.waits = slot.leaves = False
                slot.memory.begin(replaces=slot.replaces)
                if not slot.begins:
                    self._on_restart(actor_id, slot.replaces)
                slot.held_bytes, slot.replaces, slot.begins = 0, False, False

    def _take_exits(self, exits: Sequence[ActorExit]) -> None:
        for ended in exits:  # all of them first: who is alive matters below
            self._slots[ended.peer.actor_id].alive = False
        if any(ended.by_signal_to_job for ended in exits):
            self._interrupter.wait(_SAME_SIGNAL_S)
        for ended in exits:
            self._take_exit(ended)

    def _take_exit(self, ended: ActorExit) -> None:
        slot = self._slots[ended.peer.actor_id]
        self._on_exit(ended)
        if ended.gone:  # no failure of the actor; the launcher has logged it
            slot.restart_at = self._clock() if slot.wanted else None
            return
        who = self._name(ended.peer.actor_id)
        killed_because = slot.killed_because if ended.code < 0 else None  # else it exited first
        cause = killed_because or cause_of(ended)
        # After the first error, another exception is one line; stacks of a crash are shown.
        seen = ended.error and self._interrupter.error is not None
        text = f"\n\n{ended.text}" if ended.text and not (seen or lost_connection(ended)) else ""
        now = self._clock()
        if (ends := self._ends_well()) or slot.leaves or not slot.wanted:
            if ended.code and not (ended.by_signal_to_job and self._interrupter.urgent):
                when = "at the end of the run" if ends else "while it left the run"
                lost = f"{when}; what it had not sent is lost"
                logger.warning("%s %s, %s. %s%s", who, cause.how, lost, cause.advice, text)
            if slot.wanted and not ends:  # it was added again
                slot.begins, slot.restart_at = True, now
            return
        if slot.held_bytes and not ended.code:
            slot.replaces, slot.restart_at = True, now
            self._policy.on_replacement()
            return
        left = self._others_left(ended.peer.actor_id)
        decision = self._policy.on_exit(
            ended, now=now, others_work=self._any_works(), others_left=left, cause=cause
        )
        match decision:
            case GiveUp(why, todo):
                done = "; ".join(filter(None, (cause.how, why, "the run ends")))
                self._interrupter.fail(ActorFailed(f"{who} {done}. {todo}{text}"))
                return
            case Drop():
                slot.dropped = True
                with self._sizing:
                    self._size -= 1
                self._on_drop(ended.peer.actor_id)
                done = f"the run continues without it, with {left} others"
            case restart:
                done = f"it is restarted in {restart.after_s:.1f} s"
                slot.restart_at = now + restart.after_s
        logger.warning("%s %s; %s. %s%s", who, cause.how, done, cause.advice, text)

    def _ends_well(self) -> bool:
        """Whether exits are expected now: actors were asked to finish, or a signal ends the run."""
        hurries = self._interrupter.urgent and self._interrupter.error is None
        return hurries or self._finishing.is_set()

    def _others_left(self, actor_id: ActorId) -> int | None:
        """Return how many other actors run or will be restarted; None if this is not an actor."""
        if actor_id in self._names:
            return None
        return sum(slot.wanted and not slot.dropped for i, slot in self._actors() if i != actor_id)

    def _any_works(self) -> bool:
        return any(self._launcher.progress(peer).turns > 0 for peer, _ in self._living())

    def _living(self) -> Iterator[tuple[Peer, _Slot]]:
        for actor_id, slot in self._slots.items():
            if slot.alive:
                yield Peer(actor_id=actor_id, incarnation=slot.incarnation), slot

    def _time_passed_s(self) -> float:
        """Return how much of the time since the last call counts towards actors' timeouts."""
        now = self._clock()
        passed_s, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK_S), now
        return passed_s

    def _end_hanging(self, passed_s: float) -> None:
        """Kill actors without a heartbeat, a step or a wait, for longer than the timeout."""
        if self._finishing.is_set():
            return
        for peer, slot in self._living():
            progress = self._launcher.progress(peer)
            signs = (progress.turns, progress.waits)
            slot.silent_s = slot.silent_s + passed_s if signs == slot.signs else 0.0
            slot.signs, slot.waits = signs, progress.waiting
            if not slot.place.pid:
                slot.place = self._launcher.place(peer)
            if cause := self._hangs(slot):
                slot.killed_because, slot.silent_s = cause, 0.0
                self._launcher.kill(peer, with_stacks=True)

    def _hangs(self, slot: _Slot) -> Cause | None:
        config, silent_s = self._config, slot.silent_s
        if slot.held_bytes:
            if silent_s <= config.stop_timeout_s:
                return None
            limit_bytes, timeout_s = config.memory_limit_bytes, config.stop_timeout_s
            return overstayed(slot.held_bytes, limit_bytes, silent_s, timeout_s)
        starts = slot.signs == (0, 0)
        limit_s = config.start_timeout_s if starts else config.step_timeout_s
        if not config.step_timeout_s or silent_s <= limit_s:
            return None
        return hung(silent_s, limit_s, starts=starts)

    def _replace_large(self, passed_s: float) -> None:
        """Ask actors above the memory limit to finish."""
        limit_bytes = self._config.memory_limit_bytes
        if not limit_bytes or self._finishing.is_set():
            return
        for peer, slot in self._living():
            if slot.killed_because or slot.held_bytes or slot.leaves:
                continue
            held_bytes = self._launcher.memory_bytes(peer)
            progress = self._launcher.progress(peer)
            works = progress.turns > 0
            slot.memory.look(passed_s, held_bytes, works=works, waits=progress.waiting)
            if held_bytes <= limit_bytes:
                continue
            if works:
                self._replace(peer, slot, held_bytes)
            else:
                slot.killed_because = too_large_to_start(held_bytes, limit_bytes)
                self._launcher.kill(peer)

    def _replace(self, peer: Peer, slot: _Slot, held_bytes: int) -> None:
        """Ask an actor to finish at the memory limit; end the run if restarts take too long."""
        who = self._name(peer.actor_id)
        found = at_limit(held_bytes, self._config.memory_limit_bytes)
        slot.held_bytes, slot.silent_s = held_bytes, 0.0
        if end := slot.memory.on_limit(held_bytes):
            why = f"{who} {found}; {end.why}; the run ends. {end.advice}"
            self._interrupter.fail(ActorFailed(why))
            return
        self._launcher.finish(peer)
        level = logging.INFO if self._memory_warned else logging.WARNING
        self._memory_warned = True
        logger.log(
            level,
            "%s %s; it finishes and is restarted, without loss. It %s. These restarts are counted "
            "as actor/<id>/memory_restarts; further ones are not logged. %s",
            who,
            found,
            slot.memory.growth(held_bytes),
            RAISE_LIMIT,
        )

    def _kill_remaining(self) -> None:
        for peer, _ in self._living():
            if self._kills and peer.actor_id not in self._names:
                logger.warning(
                    "%s did not exit in time and is killed; what it had not sent is lost. If its "
                    "environments need more time, raise supervision.stop_timeout_s, now %g",
                    self._name(peer.actor_id),
                    self._config.stop_timeout_s,
                )
            self._launcher.kill(peer)
        deadline = self._clock() + self._config.stop_timeout_s
        while self.alive and self._clock() < deadline:
            for ended in self._launcher.exits(_WATCH_S):
                self._slots[ended.peer.actor_id].alive = False
                self._on_exit(ended)

    def _name(self, actor_id: ActorId) -> str:
        return self._names.get(actor_id, f"actor {actor_id}")


def _state_of(slot: _Slot) -> ActorState:
    if not slot.alive:
        return "given up" if slot.dropped else "to start" if slot.wanted else "left"
    if slot.killed_because or slot.leaves:
        return "ending" if slot.killed_because else "leaving"
    if not slot.signs[0]:
        return "starting"
    return "waiting" if slot.waits else "running"
