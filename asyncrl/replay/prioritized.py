"""Prioritized replay: transitions with large TD errors are sampled more often.

Schaul et al., "Prioritized Experience Replay", 2016, https://arxiv.org/abs/1511.05952, in its
proportional form:

    P(i) = p_i^alpha / sum_k p_k^alpha        p_i = |TD error of i| + epsilon
    weight_i = (P(i) / P_lowest)^-beta        1 / P_lowest is the largest weight

P_lowest is the minimum of the batch, or with `normaliser="buffer"` that of the whole replay.
Several learners with a replay each divide by the largest `largest_weight`, P_lowest^-beta.

The difference to the paper: actors may compute initial priorities. If rows have a column
`priority`, it is their first TD error. If they have `q_taken` and `q_best`, the values of the
action taken and of the best action in the acting model, the first TD error is

    | n-step return + discount * q_best of the row after - q_taken |

If rows have `reward_scale`, the return is multiplied by it and clipped, so that it has the unit of
the values, and the limits of later TD errors.

Other new transitions get the highest priority so far. So do those whose return ends in an `END` row
without termination, because no action was taken there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.core.segment import END, LARGEST_REWARD, SegmentSchema
from asyncrl.core.types import Array, IntArray
from asyncrl.replay.priorities import Priorities, PrioritiesConfig
from asyncrl.replay.ring import Ring
from asyncrl.replay.uniform import RingReplay


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritizedReplayConfig(PrioritiesConfig):
    """Size of the replay, how returns are computed, and how priorities are used."""

    def build(self, schema: SegmentSchema, seed: int) -> PrioritizedReplay:
        """Allocate ring and sum tree."""
        return PrioritizedReplay(self, schema, seed)


class PrioritizedReplay(RingReplay):
    """Its batches have more columns: `weight` and `largest_weight`, float32, and `index`, int64.

    A transition's index is its number in order of arrival; numbers are never reused.
    """

    def __init__(self, config: PrioritizedReplayConfig, schema: SegmentSchema, seed: int) -> None:
        ring = Ring(config, schema)
        self._priorities = Priorities(config, ring, seed, self._first_td_error)
        super().__init__(ring, self._priorities)

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Set the TD errors of transitions of an earlier batch."""
        self._priorities.update(index, td_error)

    def resume_at(self, samples: int) -> None:
        """Continue with the beta that follows this number of samples."""
        self._priorities.resume_at(samples)

    def _gather(self, rows: IntArray) -> dict[str, Array]:
        return self._ring.transitions(rows)

    def _first_td_error(self, numbers: IntArray) -> Array | None:
        """Return the initial TD errors that actors know of new transitions; NaN where unknown."""
        columns, rows = self._ring.columns, self._ring.rows(numbers)
        if "priority" in columns:
            return columns["priority"].take(rows)
        if not {"q_taken", "q_best"} <= set(columns):
            return None
        returns = self._ring.returns(rows)
        after = returns.last + 1
        ended = (columns["flags"].take(after) >= END) & (returns.discount > 0)
        value = np.where(returns.discount > 0, columns["q_best"].take(after), np.float32(0))
        reward = returns.reward
        if "reward_scale" in columns:
            scaled = reward * columns["reward_scale"].take(rows)
            reward = scaled.clip(-LARGEST_REWARD, LARGEST_REWARD)
        error = reward + returns.discount * value - columns["q_taken"].take(rows)
        return np.where(ended, np.float32(np.nan), error)
