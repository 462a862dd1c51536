"""Sequence replay: windows of consecutive rows of one episode, for recurrent agents.

A sample is `sequence_length` rows to learn from, after `burn_in` rows that only warm up the memory.
With T = burn_in + sequence_length and n = n_step, a batch of B of them has

    obs            (B, T + n, ...)   the n last ones are there to bootstrap from
    action, ...    (B, T, ...)       and the other columns, the agent's own among them
    reward         (B, T)            n-step returns: discounted rewards up to the bootstrap
    discount       (B, T)            factor of the bootstrap value; 0 at termination
    bootstrap      (B, T)            int64: position in `obs` to bootstrap from, t + n or earlier
    mask           (B, T)            bool: rows that are transitions of this episode
    start columns  (B, ...)          of the first real row, see `start_columns`

The target of row t is `reward[t] + discount[t] * value(obs)[bootstrap[t]]`. A sequence never
crosses the end of an episode. After it, `obs` repeats the episode's last observation, other columns
repeat the last transition's, `mask` is False, and rewards and discounts are 0. `bootstrap` never
points at a repetition, which a memory would take for one more step.

A sequence may start at every `stride`-th row of a segment, unless the episode would end in burn-in,
and at the first row of every episode. A sequence that starts an episode needs no burn-in, because
its initial memory is known. Its first `burn_in` rows are empty (`mask` False, `obs` repeats the
first one), and all of the episode's rows are learned from:

    t            0  1  2 |  3  4  5  6  7  8    burn_in=3, sequence_length=6
    from row 8   8  9 10 | 11 12 13 14 15 16    start columns: of row 8, before burn-in
    from row 0   -  -  - |  0  1  2  3  4  5    start columns: of row 0, after burn-in

An agent warms up with `h = unroll(start, obs[:, :burn_in])` and learns from the memory
`where(mask[:, burn_in - 1], h, start)` on. Each row of an episode is learned from if `stride +
burn_in <= sequence_length`; a larger stride skips rows.

Prioritized replay of sequences adds `weight`, `largest_weight` and `index`, of shape (B,). The
agent's `priorities()` returns one TD error per sequence, for instance 0.9 times the maximum over
its rows plus 0.1 times their mean, as in Kapturowski et al., "Recurrent Experience Replay in
Distributed Reinforcement Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asyncrl.core.agent import BatchKind
from asyncrl.core.declared import Count, Natural
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.types import Array, BoolArray, IntArray
from asyncrl.replay.priorities import Priorities, PrioritiesConfig
from asyncrl.replay.ring import Ring
from asyncrl.replay.ring_config import RingConfig
from asyncrl.replay.uniform import Chooser, RingReplay, Uniformly


@dataclass(frozen=True, kw_only=True)  # no slots, so that it can be combined with PrioritiesConfig
class SequenceReplayConfig(RingConfig):
    """Size of the replay, and how sequences are cut out of it.

    Capacity counts transitions; batch sizes and the rate limiter count sequences, of which `stride`
    transitions bring one. So each transition is learned from `samples_per_insert * sequence_length
    / stride` times. Every segment carries the rows of one whole sequence beyond its own rows, so
    make segments several times as long as a sequence.
    """

    sequence_length: Count = 32
    """Rows of a sequence to learn from."""

    burn_in: Natural = 0
    """Rows before them that only warm up the agent's memory."""

    stride: Count = 16
    """Rows between the starts of two sequences. Fewer than the length make sequences overlap."""

    start_columns: tuple[str, ...] = ()
    """The agent's columns that are needed only in the first row of a sequence: its memory."""

    batch_kind: ClassVar[BatchKind] = "sequences"

    @property
    def rows(self) -> int:
        """Rows of a sequence, without those that are only for bootstrapping."""
        return self.burn_in + self.sequence_length

    @property
    def lookahead(self) -> int:
        """Rows after a sampled one: a sequence may start at the next row and runs from there.

        At the next row, because the row before it shows whether an episode begins. The first
        episode of a stream may therefore lack its first sequence, unless segments look back.
        """
        return self.rows + self.n_step

    def build(self, schema: SegmentSchema, seed: int) -> SequenceReplay:
        """Allocate the ring."""
        return SequenceReplay(self, schema, seed)


@dataclass(frozen=True, kw_only=True)
class PrioritizedSequenceReplayConfig(PrioritiesConfig, SequenceReplayConfig):
    """Size of the replay, how sequences are cut out of it, and how priorities are used."""

    def build(self, schema: SegmentSchema, seed: int) -> PrioritizedSequenceReplay:
        """Allocate ring and sum tree."""
        return PrioritizedSequenceReplay(self, schema, seed)


class SequenceReplay(RingReplay):
    """Samples all sequences with equal probability; its size counts sequences."""

    def __init__(
        self,
        config: SequenceReplayConfig,
        schema: SegmentSchema,
        seed: int,
        choose: Callable[[Ring, int], Chooser] = Uniformly,
    ) -> None:
        if schema.length == 1:
            raise ConfigError(
                "sequences cannot be cut out of segments of one row, which do not show where "
                f"episodes begin; set segment.length to a multiple of replay.stride={config.stride}"
            )
        ring = _SequenceRing(config, schema)
        super().__init__(ring, choose(ring, seed))
        self._config = config
        self._windows = ring.windows
        own = [c.name for c in schema.columns if c.name not in {"obs", "reward", "flags"}]
        if unknown := set(config.start_columns) - set(own):
            raise ConfigError(
                f"replay.start_columns names {sorted(unknown)}, which rows do not have; they have "
                f"{own}"
            )
        self._row_columns = [name for name in own if name not in config.start_columns]

    def _gather(self, starts: IntArray) -> dict[str, Array]:
        ring, config = self._ring, self._config
        rows, real = self._windows(starts)
        mask = real[:, : config.rows]
        last = starts + real.sum(axis=1) - 1
        transitions = np.minimum(rows[:, : config.rows], last[:, None])
        returns = ring.returns(transitions)
        batch = {name: ring.take(name, transitions) for name in self._row_columns}
        batch |= {name: ring.take(name, starts) for name in config.start_columns}
        batch["obs"] = ring.take("obs", rows)
        batch["reward"] = np.where(mask, returns.reward, np.float32(0))
        batch["discount"] = np.where(mask, returns.discount, np.float32(0))
        steps = np.where(mask, returns.last + 1 - transitions, 0)
        batch["bootstrap"] = np.arange(config.rows) + steps
        batch["mask"] = mask
        return batch


class PrioritizedSequenceReplay(SequenceReplay):
    """Samples sequences with large TD errors more often; new ones get the highest priority."""

    def __init__(
        self, config: PrioritizedSequenceReplayConfig, schema: SegmentSchema, seed: int
    ) -> None:
        def choose(ring: Ring, seed: int) -> Priorities:
            self._priorities = Priorities(config, ring, seed)
            return self._priorities

        super().__init__(config, schema, seed, choose)

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Set the TD errors of sequences of an earlier batch."""
        self._priorities.update(index, td_error)

    def resume_at(self, samples: int) -> None:
        """Continue with the beta that follows this number of samples."""
        self._priorities.resume_at(samples)


class _SequenceRing(Ring):
    """Lists the rows at which a sequence may start, instead of all transitions."""

    def __init__(self, config: SequenceReplayConfig, schema: SegmentSchema) -> None:
        super().__init__(config, schema)
        self._burn_in = config.burn_in
        self._offsets = np.arange(config.rows + config.n_step)
        self._on_stride = np.arange(schema.length) % config.stride == 0
        # The row before shows whether an episode begins, so it must be in the segment.
        self._first = max(schema.lookback, 1)

    def windows(self, starts: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the rows of the sequences that start there, and a mask of the transitions."""
        flags = self.columns["flags"]
        begins = flags.take(starts - 1) >= END
        empty = self._burn_in * begins[:, None]
        rows = np.maximum(starts[:, None] + self._offsets - empty, starts[:, None])
        inside = np.logical_and.accumulate(flags.take(rows) < END, axis=1)
        # From the `END` row on, repeat that row.
        rows = np.minimum(rows, rows[:, :1] + (inside.sum(axis=1) - empty[:, 0])[:, None])
        return rows, inside & (self._offsets >= empty)

    def _transitions(self, real: BoolArray, n_listed: int) -> int:
        return int(np.count_nonzero(real[:, self.schema.sampled]))

    def _listed(self, real: BoolArray) -> BoolArray:
        first, end = self._first, self._first + self.schema.length
        begins = ~real[:, first - 1 : end - 1]
        ended = (~real).cumsum(axis=1)
        goes_on = ended[:, first:end] == ended[:, first + self._burn_in : end + self._burn_in]
        listed = np.zeros_like(real)
        listed[:, first:end] = real[:, first:end] & (begins | self._on_stride & goes_on)
        return listed
