"""The learner's receiving thread: from the link, past the limiter, into the buffer.

It is the only writer of the replay buffer, and the learner samples through it. So the buffer and
the limiter need no locks. Does not optimise anything.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from typing import Any, cast

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.errors import CheckpointError, TransportError
from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, start_thread
from asyncrl.core.messages import ActorReport, EvaluationReport, Experience, Hello, Message, Peer
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import (
    PART_BYTES,
    AcceptsPriorities,
    ReplayBuffer,
    StagesSegments,
    replay_groups,
    restore_replay,
)
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import Array, Arrays, Columns, IntArray
from asyncrl.fleet.actor_table import ActorTable
from asyncrl.fleet.grants import Grants, PeakRate
from asyncrl.fleet.ledger import Balance, Ledger
from asyncrl.learner.config import ReplayBufferProxyConfig
from asyncrl.learner.observer import Observer
from asyncrl.learner.rate_limiter import RateLimiter
from asyncrl.learner.staleness import NO_LIMIT, Lag, Staleness
from asyncrl.metrics.stopwatch import Stopwatch, ms_per_lap

logger = logging.getLogger(__name__)

_POLL_S = 0.1

_KEPT_BYTES = 32 << 20
"""Memory for rows that are overwritten while they are being saved, so that no actor waits."""

_MOMENT_S = 0.25
"""Seconds that the thread gets to end after the wait for it was interrupted."""

_HELD_S = 5.0
"""Seconds that a checkpoint waits for the buffer while the thread is stuck."""


class ReplayBufferProxy:
    """Receives experience as fast as the limiter allows; returns credit once it is stored.

    Actors act for messages that the limiter has room for, see `grants.py`. A message that may not
    be inserted yet is held without acknowledgement: its actor runs out of credit and waits
    (backpressure). With `overflow=drop` it is discarded instead. This bounds memory.
    """

    receives = False
    """Whether its thread runs. It alone passes orders to actors, such as to finish."""

    def __init__(
        self,
        link: LearnerLink,
        buffer: ReplayBuffer,
        limiter: RateLimiter,
        interrupter: Interrupter,
        config: ReplayBufferProxyConfig | None = None,
        *,
        window: int = 8,
        lag: Lag = NO_LIMIT,
        observers: Sequence[Observer] = (),
        network_s: Callable[[Peer], float] = lambda _: 0.0,
    ) -> None:
        """`window` limits an actor's unacknowledged messages, `lag` the age of their models.

        `network_s` returns the round trip of the network to an actor, without waits; 0 if unknown.
        """
        self._link = link
        self.buffer = buffer
        """Read-only: while the thread runs, only the proxy's own methods may call it."""
        self._drops = config is not None and config.overflow == "drop"
        self.limiter = limiter
        """Read-only, and only its counts: while the thread runs, they may change at any time."""
        self.interrupter = interrupter
        self._changed = threading.Condition()
        self._turnstile = threading.Lock()  # held while others use the buffer or wait for it
        self._gave_way = False  # to them, in this part
        self._held: deque[Experience] = deque()
        self._grants = Grants(limiter.max_insert, window)
        self.ended: deque[Peer] = deque()
        """Actors that have ended. Any thread may append; their grants go to others."""
        self._room_for_next, self._stock_for_next = float("inf"), 0.0
        self._consumption = PeakRate()
        self._waits_for = 0  # transitions of the batch that the learner waits for
        self.blocked = False
        """Whether the limiter has no room for more, so that all actors wait."""
        self._evaluations: deque[EvaluationReport] = deque()
        self._watch = Stopwatch()
        self._draining = False
        self._closing = threading.Event()
        self._thread = CrashForwardingThread(interrupter, self._receive, name="asyncrl-proxy")
        self.ledger = Ledger()
        self.actors = ActorTable()
        self.hangs = False
        """Whether its thread did not end in time; the link must then stay open."""
        self.staleness = Staleness(lag)
        """The age of the models behind experience."""
        self.observers = tuple(observers)
        """They see pushes, samples and priorities, and the experience."""
        self._network_s = network_s

    def start(self) -> None:
        """Start receiving."""
        self.receives = True
        start_thread(self._thread)

    def wait_may_sample(self, batch_size: int, timeout_s: float) -> bool:
        """Wait until the limiter allows a batch; False after `timeout_s`."""
        with self._changed:
            if timeout_s > 0 and not self._may_sample(batch_size):
                self._waits_for = batch_size
                self._link.wake()
            self._changed.wait_for(
                lambda: self._may_sample(batch_size) or self.interrupter.is_set, timeout_s
            )
            self._waits_for = 0
            return self._may_sample(batch_size)

    def sample(
        self, batch_size: int, *, before_room: Callable[[], object] = lambda: None
    ) -> Columns:
        """Sample a batch that `wait_may_sample` has allowed.

        `before_room` is called if actors are about to continue, before they do.
        """
        with self._turnstile, self._changed:
            batch = self.buffer.sample(batch_size)
            self.limiter.on_sample(batch_size)
            for one in self.observers:
                one.sampled(batch, batch_size)
            wake = (
                self._room_for_next <= self.limiter.room() < float("inf")
                or self.limiter.stock() < self._stock_for_next
            )
        if wake:
            before_room()
            self._link.wake()
        return batch

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Pass the TD errors of a batch's rows to a prioritized buffer."""
        assert isinstance(self.buffer, AcceptsPriorities)  # noqa: S101  # it has returned an index
        with self._turnstile, self._changed:
            self.buffer.update_priorities(index, td_error)
            for one in self.observers:
                one.reprioritised()

    def state(self, *, save_replay: bool) -> tuple[dict[str, Arrays], dict[str, Any]]:
        """Return what a resumed run needs of this part: arrays by group, and plain numbers.

        The limiter's counts refer to the replay, so they are saved with it. A large replay is not
        copied here; the saver reads it piece by piece during training. Raises `CheckpointError` if
        a stuck receiving thread holds the buffer.
        """
        counts: dict[str, float] = {}
        recorded: dict[str, Any] = {}
        with self._turnstile, self._buffer_to_save():
            groups = replay_groups(self.buffer, save=save_replay, room_bytes=_KEPT_BYTES)
            if groups:
                counts = self.limiter.state()
            balance, env_steps = self.ledger.balance(), self.ledger.env_steps
            episodes = self.actors.episodes
            for one in self.observers:
                recorded |= one.state()
        reported = {"ledger": asdict(balance), "env_steps": env_steps, "episodes": episodes}
        return groups, {**reported, **recorded, "limiter": counts}

    def restore(self, checkpoint: Checkpoint, *, sampled: int = 0) -> None:
        """Restore what `state` returned; call it before `start`.

        `sampled` is as in `restore_replay`.
        """
        parts = {f.name: checkpoint.count(f"run.ledger.{f.name}") for f in fields(Balance)}
        self.ledger.resume_at(Balance(**parts), env_steps=checkpoint.count("run.env_steps"))
        self.actors.episodes_before = checkpoint.count("run.episodes")
        if restore_replay(self.buffer, checkpoint.groups, sampled=sampled):
            self.limiter.resume_at(_limiter_state(checkpoint))

    def take_evaluations(self) -> list[EvaluationReport]:
        """Return the evaluations that have arrived since the last call."""
        taken: list[EvaluationReport] = []
        while self._evaluations:
            taken.append(self._evaluations.popleft())
        return taken

    def drain(self) -> None:
        """From now on store all that arrives, whatever the limiter says: actors are finishing."""
        self._draining = True
        self._link.wake()

    def close(self, timeout_s: float = 30.0) -> None:
        """Store what has already arrived, then end the thread; may be called again.

        Raises `TransportError` if the thread does not end; it names where the thread is stuck.
        """
        self._closing.set()
        self._link.wake()
        try:
            self._has_ended(timeout_s)
        finally:
            self.hangs = not self._has_ended(_MOMENT_S)
        if self.hangs:
            raise TransportError(
                f"the thread that receives experience did not end within {timeout_s:g} s and is "
                "abandoned with the experience that it had not stored; it is stuck in "
                f"{self._current_line()}"
            )

    def record(self) -> Record:
        """Return ledger, replay, link and receiving metrics; times are since the last call."""
        balance = self.ledger.balance()
        inserted, sampled = self.limiter.inserted / self.limiter.stride, self.limiter.sampled
        record = {
            "samples_total": float(balance.stored),
            "samples_per_insert": sampled / inserted if inserted else 0.0,
            "replay/size": float(len(self.buffer)),
            "ledger/produced": float(balance.produced),
            "ledger/stored": float(balance.stored),
            "ledger/dropped": float(balance.dropped),
            "ledger/lost": float(balance.lost),
            "ledger/in_flight": float(balance.in_flight),
            **{f"link/{reason}": float(n) for reason, n in self._link.counters.items() if n},
        }
        return record | ms_per_lap(self._watch.take(), ("recv", "push"))

    @contextmanager
    def _buffer_to_save(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=_HELD_S if self.hangs else -1):
            raise CheckpointError(
                "the last checkpoint was not saved, since the thread that receives experience is "
                "stuck while it stores some; earlier checkpoints are intact"
            )
        try:
            yield
        finally:
            self._changed.release()

    def _has_ended(self, timeout_s: float) -> bool:
        return self._thread.ident is None or self._thread.has_ended(timeout_s)

    def _current_line(self) -> str:
        # The only way to read another thread's stack.
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        if frame is None:
            return "nothing any more"
        code = frame.f_code
        return f"{code.co_qualname}, {code.co_filename}:{frame.f_lineno}"

    def _receive(self) -> None:
        try:
            self._run()
        finally:
            self.receives = False

    def _run(self) -> None:
        self._watch.start()
        while True:
            closing = self._closing.is_set()
            messages = self._link.poll(0.0 if closing else _POLL_S, self._waited)
            for message in messages:
                self._take(message)
            self._watch.lap("recv" if messages else "idle")
            self._store_held()
            self._grant_more()
            if closing and not messages:
                return

    def _waited(self) -> None:
        self._watch.lap("idle")

    def _take(self, message: Message) -> None:
        match message:
            case Experience():
                self._take_experience(message)
            case ActorReport():
                self.ledger.on_produced(
                    message.peer, produced=message.produced, env_steps=message.env_steps
                )
                self.actors.on_report(message)
            case EvaluationReport():
                self._evaluations.append(message)
            case Hello():
                if message.schema_hash and not self.ledger.has_ended(message.peer):
                    self._grants.on_arrival(message.peer)
                logger.debug("actor %s has connected", message.peer)

    def _take_experience(self, message: Experience) -> None:
        self.ledger.on_received(
            message.peer,
            transitions=message.transitions,
            produced=message.produced,
            env_steps=message.env_steps,
        )
        self.actors.on_experience(
            message.peer, env_steps=message.env_steps, model_version=message.model_version
        )
        too_old = self.staleness.on_experience(message)
        with self._changed:
            fits = not self._held and self.limiter.may_insert(message.transitions)
            fits = fits and not too_old
            at_once = None if self.limiter.warm_up_left() else fits
        peer, network_s = message.peer, self._network_s(message.peer)
        self._grants.on_received(
            peer, message.seq, at_once=at_once, now_s=time.monotonic(), network_s=network_s
        )
        self._held.append(message)

    def _store_held(self) -> None:
        while self._held:
            message = self._held[0]
            with self._changed:
                may_insert = self._draining or self.limiter.may_insert(message.transitions)
            if not may_insert and not self._drops:
                return
            self._held.popleft()
            if may_insert:
                self._store(message)
                self.staleness.on_stored(message)
            else:
                self.ledger.on_dropped("overflow", message.transitions)
            self._link.acknowledge(message.peer, message.seq)
            self._watch.lap("push")

    def _grant_more(self) -> None:
        """Grant messages that there is room for."""
        while self.ended:
            self._grants.on_end(self.ended.popleft())
        held = sum(message.transitions for message in self._held)
        now_s = time.monotonic()
        with self._changed:
            anyway = self._drops or self._draining
            room = float("inf") if anyway else self.limiter.room() - held
            rate = self._consumption.update(self.limiter.consumed(), now_s)
            needed = rate * self._grants.round_trip_s - held
            shortage = needed - self.limiter.stock()
            starved = not held and self._is_starved()
            granted = list(
                self._grants.issue(room, shortage=shortage, starved=starved, now_s=now_s)
            )
            first = self._held[0].transitions if self._held else None
            self._room_for_next = first or self._grants.room_for_next
            self._stock_for_next = needed - self._grants.shortage_for_next
            self.blocked = bool(held) or self._grants.all_blocked
        for peer, seq in granted:
            self._link.acknowledge(peer, 0, seq)

    def _may_sample(self, batch_size: int) -> bool:
        return len(self.buffer) > 0 and self.limiter.may_sample(batch_size)

    def _is_starved(self) -> bool:
        waits = self._waits_for > 0 and not self._may_sample(self._waits_for)
        return waits or self.limiter.warm_up_left() > 0

    def _store(self, message: Experience) -> None:
        """Push a message in parts; between parts other threads may sample or save."""
        for one in self.observers:
            one.message(message)
        segment_bytes = sum(column[0].nbytes for column in message.columns.values())
        step = max(1, PART_BYTES // segment_bytes)
        for first in range(0, len(message.rows), step):
            part = slice(first, first + step)
            columns = {name: column[part] for name, column in message.columns.items()}
            self._gave_way = False
            self._give_way()
            push = self._staged(columns, message.rows[part])
            self._give_way()
            with self._changed:
                stored = push()
                for one in self.observers:
                    one.pushed(len(message.rows[part]))
                self.ledger.on_stored(stored)
                self.limiter.on_insert(stored)
                self._changed.notify_all()

    def _staged(self, columns: Columns, rows: IntArray) -> Callable[[], int]:
        """Return what finishes a push; as much as the buffer allows is done without the lock."""
        if issubclass(type(self.buffer), StagesSegments):  # `isinstance` takes 6 us
            buffer = cast(StagesSegments, self.buffer)
            return buffer.stage(columns, rows, self._give_way)
        return partial(self.buffer.push, columns, rows)

    def _give_way(self) -> None:
        """Let a thread that samples finish first; once per part, so that parts get stored."""
        if not self._gave_way and self._turnstile.locked():
            self._gave_way = True
            with self._turnstile:
                pass


def _limiter_state(checkpoint: Checkpoint) -> dict[str, float]:
    """Return what a checkpoint holds of the limiter."""
    held = "run.limiter"
    counts = {name: checkpoint.count(f"{held}.{name}") for name in ("inserted", "sampled")}
    names = ("samples_per_insert", "offset", "min_size")
    return {**counts, **{name: checkpoint.number(f"{held}.{name}") for name in names}}
