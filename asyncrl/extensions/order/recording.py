"""The order of an asynchronous run: what must be known to compute the same bits again.

Threads and processes decide when experience is stored, relative to samples and optimisation steps.
Everything else follows from seeds and settings. The order consists of events, a few bytes each, and
of the stored experience:

    Pushed          the next segments of the oldest message were pushed into the replay
    Sampled         transitions were sampled, for one batch or several
    Reprioritised   the TD errors of the newest batch were set in the replay
    Took            the next of these batches was taken
    Learns          an optimisation step begins, at this number of environment steps
    Threads         torch computes with this number of threads from here on
    Published       a model was published, with this checksum
    Saved           the state of agent and replay was copied for a checkpoint
    Rewards         the replay computes rewards as other environments do from here on

Sampled rows, priorities and parameters are not recorded: they follow from the same events.
Checksums of published models show where they do not. A thread writes all this into one file. A
message always comes before the events that use it, so any beginning of the file can be replayed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.checkpoint.directory import make_directory
from asyncrl.checkpoint.record_file import RecordFile
from asyncrl.checkpoint.resume import plain_config
from asyncrl.core.env import plain_description
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, start_thread
from asyncrl.core.measured import choices
from asyncrl.core.messages import Experience, ModelInfo
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.torch_threads import torch_threads
from asyncrl.core.types import Columns
from asyncrl.extensions.order.log import (
    CODES,
    FORMAT,
    Kind,
    Learns,
    Published,
    Pushed,
    Reprioritised,
    Rewards,
    Sampled,
    Saved,
    Threads,
    Took,
    as_text,
    checksum_of,
    next_part,
    packed,
    part_of,
)
from asyncrl.learner.observer import MakeObserver, Observed, Observer
from asyncrl.metrics.machine import machine

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.1
"""Between two writes: a run that is killed loses the events of this time."""

_MOST_BYTES = 64 << 20
"""Experience that may wait for the disk. Beyond it the receiving thread waits, and so do actors."""

_CLOSE_S = 30.0


ORDER_FILE = "order"
"""Name of the file in the directory of a run."""


def record_order(path: str | PathLike[str]) -> MakeObserver:
    """Return what keeps the experience of a run and the order in which the learner used it.

        train_async(..., observers=[record_order("runs/mine/order")])

    `replay_run` can then compute the same parameters again. A resumed run writes another file
    beside the first one.
    """
    if not isinstance(path, str | PathLike):
        raise ConfigError(
            f"record_order takes the path of a file, got {path!r:.80}; pass for instance "
            'record_order("runs/mine/order")'
        )
    return partial(_recorded, Path(path).absolute())  # the working directory may change


def _recorded(path: Path, run: Observed) -> RecordedOrder:
    if run.learners > 1:
        raise ConfigError(
            f"record_order keeps the order of one learner, but there are {run.learners}; use one "
            f"learner, or leave it out: a recorded run is resumed without it once {path} is moved "
            "away"
        )
    after, checkpoint = None, run.checkpoint
    if checkpoint is not None:
        after = checkpoint.meta["run"].get("order")
        if after is None:
            raise ConfigError(
                f"checkpoint {checkpoint.path} is of a run whose order was not recorded, so "
                "the resumed run cannot record its own either; resume without record_order, and "
                f"move {path} away if it is there"
            )
        before = part_of(path, after["part"])
        if not before.exists():
            raise ConfigError(
                f"the order up to checkpoint {checkpoint.path} would be in {before}, which does "
                "not exist, so what follows could not be replayed: a run that branches off into "
                "another directory cannot record its order; resume without record_order, and move "
                f"{path} away if it is there"
            )
        after = {**after, "replay": REPLAY in checkpoint.groups}
    return RecordedOrder(path, run.schema, partial(about_run, run), run.interrupter, after=after)


def about_run(run: Observed) -> dict[str, Any]:
    """Return what a replay needs beside the order, as plain values, once all parts are built."""
    return {
        "seed": run.seed,
        "schema": run.schema.hash(),
        "env": plain_description(run.env),
        "config": plain_config(run.settings),
        "machine": machine(),
        "choices": dict(choices()),
    }


class RecordedOrder(Observer):
    """Writes the order into a new file, in a thread.

    If the disk is slower than the experience, actors wait for it as for a slow learner. If a write
    fails, recording ends with a warning and the run continues: it can be replayed up to there.
    """

    def __init__(
        self,
        path: Path,
        schema: SegmentSchema,
        describe: Callable[[], Mapping[str, Any]],
        interrupter: Interrupter,
        *,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """`describe` returns what a replay must know of the run, as plain values.

        `after` is what a checkpoint contains from which the run is resumed, and `replay`, whether
        its replay was loaded. The file of an earlier part is not changed; a new one is written.
        """
        self._part, self._after = next_part(path), after
        self.path = part_of(path, self._part)
        self._schema = schema
        self._describe = describe
        self._interrupter = interrupter
        self._pending: deque[bytes | Experience | ModelInfo] = deque()
        self._env_steps = self._threads = self._saves = 0
        self._changed = threading.Condition()
        self._waiting_bytes = 0
        self._has_waited = self._has_failed = self._in_hurry = self._closing = False
        self._thread = CrashForwardingThread(interrupter, self._run, name="asyncrl-order")

    def begin(self) -> None:
        """Create the file and start the thread."""
        try:
            make_directory(self.path.parent)
            self._file = RecordFile(self.path)
        except OSError as error:
            raise ConfigError(
                f"cannot create {self.path} for the order of the run: {error.strerror}"
            ) from error
        start_thread(self._thread)

    def message(self, message: Experience) -> None:
        """Keep a message; wait while too much experience waits for the disk."""
        size = _nbytes(message)
        with self._changed:
            while self._waiting_bytes and self._waiting_bytes + size > _MOST_BYTES:
                if self._has_failed or self._interrupter.is_set:  # the run does not wait for it
                    break
                self._warn_of_waiting()
                self._changed.wait(_INTERVAL_S)
            self._waiting_bytes += size
        self._pending.append(message)

    def pushed(self, segments: int) -> None:
        """Note a push."""
        self._pending.append(CODES[Pushed] + packed(segments))

    def sampled(self, batch: Columns, count: int) -> None:
        """Note a sample."""
        self._pending.append(CODES[Sampled] + packed(count))

    def reprioritised(self) -> None:
        """Note new priorities; only samples depend on them, so this thread's order is enough."""
        self._pending.append(CODES[Reprioritised])

    def rewards(self, goal_reward: Any) -> None:  # noqa: ANN401  # in JSON
        """Note other rewards."""
        self._pending.append(CODES[Rewards] + as_text(goal_reward))

    def took(self) -> None:
        """Note that a batch is given to the loop."""
        self._pending.append(CODES[Took])

    def learns(self, env_steps: int) -> None:
        """Note that an optimisation step begins, and the threads that compute it."""
        threads = torch_threads() or 0
        if threads != self._threads:
            self._threads = threads
            self._pending.append(CODES[Threads] + packed(threads))
        self._pending.append(CODES[Learns] + packed(env_steps - self._env_steps))
        self._env_steps = env_steps

    def published(self, model: ModelInfo) -> None:
        """Note a model; the thread computes its checksum."""
        self._pending.append(model)

    def state(self) -> Mapping[str, Any]:
        """Note a checkpoint; return its place in the order."""
        self._saves += 1
        self._pending.append(CODES[Saved] + packed(self._saves))
        with self._changed:  # on disk before the checkpoint is, or the resumed part cannot follow
            self._in_hurry = True
            self._changed.notify_all()
        return {"order": {"part": self._part, "save": self._saves}}

    def close(self) -> None:
        """Write what is pending, say that the run has ended, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None and not self._thread.has_ended(_CLOSE_S):
            logger.warning(
                "the disk has not taken the end of %s within %g s; it can be replayed up to there",
                self.path,
                _CLOSE_S,
            )

    def _warn_of_waiting(self) -> None:
        if not self._has_waited:
            self._has_waited = True
            logger.warning(
                "the disk of %s is slower than the experience that arrives; actors wait for it",
                self.path,
            )

    def _run(self) -> None:
        try:
            self._write_all()
        except OSError as error:
            logger.warning(
                "cannot write %s: %s; the run continues, and can be replayed up to this point",
                self.path,
                error.strerror,
            )
            self._has_failed = True
            self._pending = deque(maxlen=0)  # keeps nothing

    def _write_all(self) -> None:
        with self._file as file:
            self._append_head(file)
            while not self._closing:
                self._write_pending(file)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._in_hurry, _INTERVAL_S)
                    self._in_hurry = False
            self._write_pending(file)
            file.append(Kind.END)

    def _append_head(self, file: RecordFile) -> None:
        columns = [[c.name, c.dtype, list(c.shape)] for c in self._schema.columns]
        head = {"format": FORMAT, "columns": columns, "rows": self._schema.rows}
        head |= {"after": self._after}
        file.append(Kind.HEAD, json.dumps({**head, **self._describe()}).encode())

    def _write_pending(self, file: RecordFile) -> None:
        """Write the messages as they come, and then all events: none uses a later message.

        Of several models, only the newest gets a checksum, so that they take no time that counts.
        """
        events = []
        items = [self._pending.popleft() for _ in range(len(self._pending))]
        newest = next((item for item in reversed(items) if isinstance(item, ModelInfo)), None)
        for item in items:
            match item:
                case bytes():
                    events.append(item)
                case ModelInfo():
                    checksum = checksum_of(item.params) if item is newest else 0
                    event = CODES[Published] + packed(item.version)
                    events.append(event + checksum.to_bytes(4, "little"))
                case Experience():
                    columns = [item.columns[c.name] for c in self._schema.columns]
                    contiguous = map(np.ascontiguousarray, (item.rows, *columns))
                    file.append(Kind.MESSAGE, len(item.rows).to_bytes(4, "little"), *contiguous)
                    self._release(item)
        if events:
            file.append(Kind.EVENTS, b"".join(events))
        file.flush()

    def _release(self, message: Experience) -> None:
        with self._changed:
            self._waiting_bytes -= _nbytes(message)
            self._changed.notify_all()


def _nbytes(message: Experience) -> int:
    return sum(column.nbytes for column in message.columns.values())
