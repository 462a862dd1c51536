"""Uniform replay over a ring of segments, with n-step returns made when sampling.

Stores each observation once. Does not know where segments come from, and holds no lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.errors import ConfigError
from asyncrl.segment import END, TERMINATED, SegmentSchema
from asyncrl.types import Array, Columns, IntArray

__all__ = ["UniformReplay", "UniformReplayConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformReplayConfig:
    """Size of the replay, and how returns are made of it."""

    capacity: int = 100_000
    """Transitions kept at the most; the oldest make room."""

    n_step: int = 1
    """Steps whose rewards are added up before the value of the next observation is used."""

    gamma: float = 0.99
    """Discount of a reward one step later."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ConfigError(f"replay.capacity must be at least 1, got {self.capacity}")
        if self.n_step < 1:
            raise ConfigError(f"replay.n_step must be at least 1, got {self.n_step}")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"replay.gamma must lie in [0, 1], got {self.gamma}")

    @property
    def lookahead(self) -> int:
        """Rows that follow a sampled one: its n-step return reaches that far."""
        return self.n_step

    def build(self, schema: SegmentSchema, seed: int) -> UniformReplay:
        """Allocate the ring."""
        return UniformReplay(self, schema, seed)


class UniformReplay:
    """Every transition in it is equally likely to be sampled.

    The ring holds whole segments. Beside it a second ring lists, in order of arrival, the rows
    that are transitions, so a uniform choice is one random number and one look-up.
    """

    def __init__(self, config: UniformReplayConfig, schema: SegmentSchema, seed: int) -> None:
        if schema.lookahead < config.n_step:
            raise ConfigError(
                f"replay.n_step={config.n_step} needs segments that look {config.n_step} rows "
                f"ahead; these look {schema.lookahead} ahead"
            )
        self._schema = schema
        self._n_slots = max(1, config.capacity // schema.length)
        self._n_step = config.n_step
        self._discounts = config.gamma ** np.arange(config.n_step + 1, dtype=np.float32)
        self._random = np.random.default_rng(seed)
        self._ring = {
            c.name: np.zeros((self._n_slots, schema.rows, *c.shape), c.dtype)
            for c in schema.columns
        }
        self._flat = {
            name: column.reshape(self._n_slots * schema.rows, *column.shape[2:])
            for name, column in self._ring.items()
        }
        self._extras = [c.name for c in schema.columns if c.name not in {"obs", "reward", "flags"}]
        self._next_slot = 0
        self._per_slot = np.zeros(self._n_slots, np.int64)
        self._rows = np.zeros(self._n_slots * schema.length, np.int64)
        self._oldest = 0
        self._newest = 0

    @property
    def capacity(self) -> int:
        """Transitions that it holds at the most."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for column in self._ring.values())

    def __len__(self) -> int:
        return self._newest - self._oldest

    def push(self, columns: Columns, rows: IntArray) -> int:
        """Copy segments in, the oldest making room; return how many transitions they hold."""
        before, done = self._newest, 0
        while done < len(rows):
            slot = self._next_slot
            count = min(len(rows) - done, self._n_slots - slot)
            part = slice(done, done + count)
            for name, column in self._ring.items():
                column[slot : slot + count] = columns[name][part]
            self._index(slot, columns["flags"][part], rows[part])
            self._next_slot = (slot + count) % self._n_slots
            done += count
        return self._newest - before

    def sample(self, batch_size: int) -> Columns:
        """Draw transitions with replacement."""
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        drawn = self._random.integers(self._oldest, self._newest, batch_size)
        return self._gather(self._rows[drawn % len(self._rows)])

    def _index(self, slot: int, flags: Array, rows: IntArray) -> None:
        """Forget the transitions of the slots that were overwritten, list the new ones."""
        count, length = len(rows), self._schema.length
        self._oldest += int(self._per_slot[slot : slot + count].sum())
        real = (flags[:, :length] < END) & (np.arange(length) < rows[:, None])
        self._per_slot[slot : slot + count] = real.sum(axis=1)
        segment, row = np.nonzero(real)
        at = np.arange(self._newest, self._newest + len(segment)) % len(self._rows)
        self._rows[at] = (slot + segment) * self._schema.rows + row
        self._newest += len(segment)

    def _gather(self, rows: IntArray) -> Columns:
        if self._n_step == 1:
            steps: IntArray | int = 1
            reward = self._flat["reward"].take(rows)
        else:
            steps, reward = self._n_step_returns(rows)
        last = rows + steps - 1
        goes_on = (self._flat["flags"].take(last) & TERMINATED) == 0
        batch = {name: self._flat[name].take(rows, axis=0) for name in self._extras}
        batch["obs"] = self._flat["obs"].take(rows, axis=0)
        batch["next_obs"] = self._flat["obs"].take(last + 1, axis=0)
        batch["reward"] = reward
        batch["discount"] = self._discounts[steps] * goes_on
        return batch

    def _n_step_returns(self, rows: IntArray) -> tuple[IntArray, Array]:
        """Add rewards up to the n-th step, or to the row before an `END` if that comes first.

        The row after an episode's last transition is an `END` row, and so is the row after the
        last one of an actor that finished: no return reaches across either.
        """
        window = rows[:, None] + np.arange(self._n_step)
        open_rows = self._flat["flags"].take(window) < END
        alive = np.logical_and.accumulate(open_rows, axis=1)
        rewards = self._flat["reward"].take(window) * self._discounts[: self._n_step]
        return alive.sum(axis=1), np.where(alive, rewards, np.float32(0)).sum(axis=1)
