"""Prioritized replay: transitions about which the agent was wrong are sampled more often.

Schaul et al., "Prioritized Experience Replay", 2016, https://arxiv.org/abs/1511.05952, in its
proportional form:

    P(i) = p_i^alpha / sum_k p_k^alpha        p_i = |TD error of i| + epsilon
    weight_i = (P(i) / P_lowest)^-beta        1 / P_lowest is the largest weight

P_lowest is that of the batch, unless `normaliser` asks for that of the whole replay.

What differs: new transitions may bring their priority along. Where rows have a column `priority`,
that is their first TD error. Where they have `q_taken` and `q_best`, the values of the action that
was taken and of the best one as the acting model saw them, it is

    | n-step return + discount * q_best of the row after - q_taken |

where the return is multiplied by the row's `reward_scale`, if there is one: its unit is then that
of the values, as of the errors that are told later.
Other new transitions have the highest priority so far: also those whose return ends in an `END`
row without the episode having terminated, for nobody acted there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.types import Array, IntArray
from asyncrl.replay.priorities import Priorities, PrioritiesConfig
from asyncrl.replay.ring import Ring
from asyncrl.replay.uniform import RingReplay


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritizedReplayConfig(PrioritiesConfig):
    """Size of the replay, how returns are made of it, and who is sampled how often."""

    def build(self, schema: SegmentSchema, seed: int) -> PrioritizedReplay:
        """Allocate ring and tree."""
        return PrioritizedReplay(self, schema, seed)


class PrioritizedReplay(RingReplay):
    """Batches have two columns more: `weight`, float32, and `index`, int64.

    A transition's index is its number in order of arrival, which no other one ever has.
    """

    def __init__(self, config: PrioritizedReplayConfig, schema: SegmentSchema, seed: int) -> None:
        ring = Ring(config, schema)
        self._priorities = Priorities(config, ring, seed, self._first_td_error)
        super().__init__(ring, self._priorities)

    def update_priorities(self, index: IntArray, td_error: Array) -> None:
        """Tell how wrong the agent was about transitions of a batch, however long ago."""
        self._priorities.update(index, td_error)

    def _gather(self, rows: IntArray) -> dict[str, Array]:
        return self._ring.transitions(rows)

    def _first_td_error(self, numbers: IntArray) -> Array | None:
        """Return what the actor knew of new transitions' TD errors; NaN where it knew nothing."""
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
            reward = reward * columns["reward_scale"].take(rows)
        error = reward + returns.discount * value - columns["q_taken"].take(rows)
        return np.where(ended, np.float32(np.nan), error)
