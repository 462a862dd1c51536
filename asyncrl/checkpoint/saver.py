"""Writes checkpoints in a separate thread, so that learning does not wait for the disk.

If the system refuses a thread, `save` writes the checkpoint itself and waits for the disk.

What is saved must be a copy, or a stream of the state at that time. Of two waiting checkpoints of
the same kind, numbered or with the same word, only the newer one is written. A full disk does not
end a run: earlier checkpoints are complete, the failure is logged and counted, and the next
checkpoint is another attempt. After one that succeeds, a failed checkpoint with a word as its name,
such as the best model, is retried. Does not know what the arrays are.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import Agent
from asyncrl.core.errors import CheckpointError
from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, waited
from asyncrl.core.recorder import Record
from asyncrl.core.types import Arrays

logger = logging.getLogger(__name__)


class RunState(NamedTuple):
    """The state of a trainer in a checkpoint, besides the agent's."""

    groups: Mapping[str, Arrays]
    """Copies of arrays, and streams."""

    numbers: Mapping[str, Any]
    """Plain values, as in JSON."""


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    groups: Mapping[str, Arrays]
    meta: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return "numbered" if self.name.isdigit() else self.name

    @property
    def may_be_kept(self) -> bool:
        """Whether it can be retried later: it is not superseded, and holds no shared memory."""
        streams = [group for group in self.groups.values() if not isinstance(group, Mapping)]
        return self.kind != "numbered" and not streams and "agent" not in self.groups

    def close(self) -> None:
        """Release the memory that is kept for it."""
        for group in self.groups.values():
            if not isinstance(group, Mapping):
                group.close()


class Saver:
    """Accepts checkpoints at once, and writes them one after another."""

    def __init__(
        self, checkpointer: Checkpointer, interrupter: Interrupter, agent: Agent | None = None
    ) -> None:
        self._checkpointer = checkpointer
        self._interrupter = interrupter
        self._agent: Any = agent
        self._changed = threading.Condition()
        self._waiting: dict[str, _Job] = {}
        self._failed: dict[str, _Job] = {}
        self._running = False
        self._closing = False
        self._has_begun = False
        self._failures = 0
        self._errors: dict[str, CheckpointError] = {}
        self._logged: tuple[object, ...] | None = None
        """The kind of error whose traceback was logged; None after a successful write."""
        self._write_s = 0.0
        self.took_s = 0.0
        """Seconds that the newest numbered checkpoint took to write."""

    def make_room(self) -> None:
        """Allocate memory for a copy of the agent's state, so that no checkpoint waits for it."""
        if hasattr(self._agent, "spare"):
            self._agent.spare = self._agent.state()

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background. Its arrays must not change; streams are closed.

        Once the group `agent` has been written, the agent may overwrite its arrays.
        """
        job = _Job(name, groups, meta)
        with self._changed:
            overtaken = [self._waiting.get(job.kind), self._failed.pop(job.kind, None)]
            self._waiting[job.kind] = job
            # A new thread waits for the lock, so it cannot end before it counts as running.
            in_thread = self._running = self._running or self._started()
            self._has_begun = True
            self._changed.notify_all()
        for older in filter(None, overtaken):
            self._end(older)
        while not in_thread and self._waiting:
            self._write_next()

    def best(self) -> Checkpoint | None:
        """Return the best model on disk; None if it is missing or not complete."""
        if "best" not in self._checkpointer.names():
            return None
        try:
            return self._checkpointer.load("best", mapped=["model"])
        except CheckpointError as error:
            logger.warning("%s; the next best model replaces it", error)
            return None

    def close(self, timeout_s: float) -> None:
        """Wait until all is on disk, and allow other runs to write there. 0 waits without limit.

        Raises if the newest checkpoint of a kind could not be written. In a hurry it is written in
        the background while the process runs.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._running:
                self._checkpointer.unlock()
            written = partial(self._changed.wait_for, lambda: not self._running)
            in_time = waited(self._interrupter, written, timeout_s or math.inf)
        if self._interrupter.hurry:
            return
        if not in_time:
            raise CheckpointError(
                f"the last checkpoint was not on disk after {timeout_s:g} s and was abandoned; "
                "earlier checkpoints are complete"
            )
        for error in self._errors.values():
            raise error

    def record(self) -> Record:
        """Return the number of failed saves, and how long the newest checkpoint took to write."""
        if not self._has_begun:
            return {}
        return {"checkpoint/failures": float(self._failures), "checkpoint/write_s": self._write_s}

    def _started(self) -> bool:
        """Start the thread; return whether the system allows one."""
        try:
            CrashForwardingThread(self._interrupter, self._run, "asyncrl-saver").start()
        except RuntimeError as error:
            if not self._has_begun:
                logger.warning(
                    "no thread for writing checkpoints (%s); training waits for each of them. "
                    "Raise the limit on processes and threads, see ulimit -u",
                    error,
                )
            return False
        return True

    def _run(self) -> None:
        try:
            while self._write_next():  # release the memory of a written checkpoint before waiting
                pass
        finally:
            with self._changed:
                given_up = [*self._waiting.values(), *self._failed.values()]
                self._waiting, self._failed = {}, {}
                self._running = False
                self._changed.notify_all()
                if self._closing:
                    self._checkpointer.unlock()
            for job in given_up:
                self._end(job)

    def _write_next(self) -> bool:
        """Wait for a checkpoint and write it; return False when there will be no more."""
        job = self._next()
        if job is None:
            return False
        began = time.monotonic()
        is_kept = False
        try:
            is_kept = self._write(job)
        finally:
            if not is_kept:
                self._end(job)
        with self._changed:
            self._write_s = time.monotonic() - began
            if job.kind == "numbered":
                self.took_s = self._write_s
        return True

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if not self._waiting:
                return None
            return self._waiting.pop(next(iter(self._waiting)))

    def _end(self, job: _Job) -> None:
        """Release what was kept for a checkpoint; the next one may use its memory."""
        job.close()
        state = job.groups.get("agent")
        if isinstance(state, Mapping) and hasattr(self._agent, "spare"):
            self._agent.spare = state

    def _write(self, job: _Job) -> bool:
        """Write it; return whether it failed and should be retried after the next success."""
        try:
            self._checkpointer.save(job.name, job.groups, job.meta)
        except CheckpointError as error:
            self._log(job.name, error)
            with self._changed:
                self._errors[job.kind] = error
                is_kept = job.may_be_kept and job.kind not in self._waiting
                if is_kept:
                    self._failed[job.kind] = job
                self._failures += 1
            return is_kept
        self._logged = None
        with self._changed:
            self._errors.pop(job.kind, None)
            self._waiting.update(self._failed)
            self._failed = {}
        return False

    def _log(self, name: str, error: CheckpointError) -> None:
        """Log a traceback for the first of several failures of one kind, a line for the others."""
        cause = error.__cause__ or error
        kind = (type(cause), getattr(cause, "errno", None))
        is_new, self._logged = kind != self._logged, kind
        logger.error(
            "training continues without checkpoint %s (%d not written so far): %s",
            name,
            self._failures + 1,
            error,
            exc_info=error if is_new else None,
        )
