"""Hindsight experience replay: transitions are sampled with goals that were achieved later.

Andrychowicz et al., "Hindsight Experience Replay", 2017, https://arxiv.org/abs/1707.01495, with its
strategy "future": the desired goal of a sampled transition is replaced by a goal that was achieved
later in the same episode, and its reward is computed again.

The difference to the paper: goals are chosen at each sampling, not once when a transition is
stored. They lie at most `horizon` steps ahead. Each segment looks ahead that far, so it contains
them. Whether an episode terminated is not computed again. Samples are chosen uniformly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from asyncrl.core.declared import COMMON, Count, Share
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.goals import (
    ACHIEVED_GOAL,
    DESIRED_GOAL,
    ComputeReward,
    GoalReward,
    rewards_of,
    without_env,
)
from asyncrl.core.named import Named
from asyncrl.core.segment import END, SegmentSchema
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.replay.ring import Ring
from asyncrl.replay.ring_config import RingConfig
from asyncrl.replay.uniform import RingReplay, Uniformly


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightReplayConfig(RingConfig):
    """Size of the replay, how returns are computed, and how goals are relabelled."""

    relabelled: Annotated[Share, COMMON] = 0.8
    """Share of sampled transitions that get a goal achieved later in their episode. 0.8 is the
    paper's 4 of 5. 0 relabels none."""

    horizon: Count = 50
    """Maximum number of steps from a transition to its new goal. Segments look ahead this far, so
    the replay stores `horizon / segment.length` additional rows per transition. The episode's
    length lets all later goals be chosen; 50 is that of Gymnasium-Robotics' robots."""

    compute_reward: Named | None = None
    """Function with the arguments and the result of the environment's `compute_reward`, by import
    path as `module:name` or `module:name(setting=value)`, to call in its place. None calls the
    environment's method, without constructing an environment in the learner's process."""

    def __post_init__(self) -> None:
        RingConfig.__post_init__(self)
        if self.device != "host":
            raise ConfigError(
                f"replay.device={self.device!r} keeps goals out of reach of compute_reward, which "
                "computes with numpy; set replay.device to host"
            )

    @property
    def lookahead(self) -> int:
        """Rows after a sampled one that its n-step return and its new goal need."""
        return max(self.n_step, self.horizon)

    def build(self, schema: SegmentSchema, seed: int) -> HindsightReplay:
        """Raise `ConfigError`: what is built depends on the environment, see `for_goals`."""
        raise ConfigError(
            "HindsightReplayConfig needs an environment with goals, so it works in runs that step "
            "environments (mode async or sync); use UniformReplayConfig elsewhere"
        )

    def for_goals(self, spec: EnvSpec, goal_reward: GoalReward | None) -> HindsightOfEnv:
        """Return what builds the replay; raise `ConfigError` if the environment has no goals."""
        boxes = {} if isinstance(spec.observation, BoxSpec) else dict(spec.observation.fields)
        goals = [boxes.get(name) for name in (ACHIEVED_GOAL, DESIRED_GOAL)]
        if goals[0] is None or goals[1] is None:
            seen = f"a dict of {', '.join(boxes)}" if boxes else "one array"
            raise ConfigError(
                "hindsight needs observations that are dicts with the fields "
                f"{ACHIEVED_GOAL!r} and {DESIRED_GOAL!r}, and those of this environment are "
                f"{seen}; use one in the contract of Gymnasium-Robotics, or uniform replay"
            )
        achieved, desired = (f"{box.dtype} of shape {box.shape}" for box in goals if box)
        if achieved != desired:
            raise ConfigError(
                "hindsight puts achieved goals in the place of desired ones, but "
                f"{ACHIEVED_GOAL!r} is {achieved}, and {DESIRED_GOAL!r} is {desired}; make them "
                "the same in the environment"
            )
        return HindsightOfEnv(self, spec, self.reward_function(goal_reward))

    def reward_function(self, goal_reward: GoalReward | None) -> ComputeReward:
        """Return what computes rewards; raise `ConfigError` if there is nothing."""
        if self.compute_reward is not None:
            where = "replay.compute_reward"
            return self.compute_reward.load(where, "achieved_goal", "desired_goal", "info")
        remedy = (
            "name a function with its arguments and its result in replay.compute_reward, or use "
            "uniform replay"
        )
        if goal_reward is None:
            raise ConfigError(
                "hindsight needs the environment's method compute_reward(achieved_goal, "
                "desired_goal, info), and it has none, or is a vector environment; define it, "
                f"{remedy}"
            )
        if goal_reward["problem"]:
            raise ConfigError(
                f"hindsight cannot use compute_reward of {goal_reward['path']} in the learner's "
                f"process: {goal_reward['problem']}; change it, {remedy}"
            )
        return without_env(goal_reward)


@dataclass(frozen=True)
class HindsightOfEnv:
    """A hindsight replay's config, and the goals of the environment."""

    config: HindsightReplayConfig
    spec: EnvSpec
    compute_reward: ComputeReward

    @property
    def lookahead(self) -> int:
        """Rows that a segment needs beyond those that can be sampled."""
        return self.config.lookahead

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self.config.capacity

    @property
    def once(self) -> bool:
        """Whether each transition is sampled once."""
        return self.config.once

    def build(self, schema: SegmentSchema, seed: int) -> HindsightReplay:
        """Allocate the ring."""
        return HindsightReplay(self, schema, seed)


class HindsightReplay(RingReplay):
    """Samples transitions uniformly, most of them with a goal achieved later in their episode."""

    def __init__(self, config: HindsightOfEnv, schema: SegmentSchema, seed: int) -> None:
        self._goals = ring = _GoalRing(config.config, schema)
        self._draws = _WithMore(ring, seed)
        super().__init__(ring, self._draws)
        self._config = config.config
        self._n_step = config.config.n_step
        self._share = config.config.relabelled
        self._compute = config.compute_reward
        spec = config.spec.observation
        assert not isinstance(spec, BoxSpec)  # noqa: S101  # as `for_goals` has checked
        self._box = dict(spec.fields)[ACHIEVED_GOAL]
        self._item = np.dtype(f"V{self._box.nbytes}")
        starts = dict(zip((name for name, _ in spec.fields), spec.offsets, strict=True))
        self._starts = starts[ACHIEVED_GOAL], starts[DESIRED_GOAL]

    def compute_as(self, goal_reward: GoalReward | None) -> None:
        """Compute rewards as these environments do, unless a function is named in the settings."""
        self._compute = self._config.reward_function(goal_reward)

    @cached_property
    def _achieved(self) -> Array:
        """The goals that the step of each row of the ring achieved: those of the next row."""
        return self._goals_in(self._ring.columns["obs"][1:], self._starts[0])

    def _gather(self, rows: IntArray) -> dict[str, Array]:
        batch = self._ring.transitions(rows)
        random = self._draws.more
        # Each row by itself: rows that are sampled together may be divided into several batches.
        chosen = (random < self._share).nonzero()[0]
        if len(chosen):
            # Numbers below the share, divided by it, are again uniform in [0, 1).
            self._relabel(batch, chosen, rows.take(chosen), random.take(chosen) / self._share)
        return batch

    def _relabel(
        self, batch: dict[str, Array], chosen: IntArray, rows: IntArray, random: Array
    ) -> None:
        """Give these rows of a batch, and of the ring, new goals and their rewards."""
        goals = self._achieved[self._goals.later(rows, random)]
        for name in ("obs", "next_obs"):
            self._goals_in(batch[name], self._starts[1])[chosen] = goals
        if self._n_step == 1:
            achieved = self._goals_in(batch["next_obs"], self._starts[0])[chosen]
            reward = self._rewards(achieved, goals)
        else:
            window = self._goals.window(rows)
            achieved = self._achieved[window.ravel()]
            rewards = self._rewards(achieved, goals.repeat(self._n_step))
            reward = self._goals.summed(window, rewards.reshape(window.shape))
        batch["reward"][chosen] = reward

    def _rewards(self, achieved: Array, goals: Array) -> Array:
        """Return the reward of each pair of goals."""
        return rewards_of(self._compute, self._unpacked(achieved), self._unpacked(goals))

    def _goals_in(self, obs: Array, start: int) -> Array:
        """Return a view of the goals in packed observations, each as one item of bytes.

        Numpy gathers single items several times faster than rows of them.
        """
        return np.ndarray((len(obs),), self._item, obs, start, obs.strides[:1])

    def _unpacked(self, goals: Array) -> Array:
        return np.ndarray((len(goals), *self._box.shape), self._box.dtype, goals)


class _WithMore(Uniformly):
    """Draws numbers for the goals together with the rows, which takes less than two draws."""

    def draw(self, count: int) -> tuple[IntArray, Columns]:
        """Return row numbers; `more` then has a number in [0, 1) for each row."""
        random = self._random.random(2 * count)
        self.more = random[count:]
        return self._numbers(random[:count]), {}


class _GoalRing(Ring):
    """A ring that knows how many later rows of each row's episode its segment contains."""

    def __init__(self, config: HindsightReplayConfig, schema: SegmentSchema) -> None:
        super().__init__(config, schema)
        self._horizon = config.horizon
        # As narrow as possible, so that more of it is in the processor's caches.
        kind = np.min_scalar_type(config.horizon)
        self._later = np.zeros(config.all_slots(schema) * schema.rows, kind)

    @property
    def nbytes(self) -> int:
        """Bytes of columns and index."""
        return super().nbytes + self._later.nbytes

    def later(self, rows: IntArray, random: Array) -> IntArray:
        """Return each row or a later one of its episode, given a number in [0, 1) for each."""
        steps: IntArray = (random * self._later.take(rows)).astype(np.int64)
        steps += rows
        return steps

    def window(self, rows: IntArray) -> IntArray:
        """Return the n rows (..., n) of the n-step return of each row."""
        return self._window(rows)

    def summed(self, window: IntArray, rewards: Array) -> Array:
        """Return the n-step returns of a window's rewards (..., n)."""
        return self._n_step_sums(window, rewards)[1]

    def _index(
        self, slot: int, rows: IntArray, number: int, pause: Callable[[], object]
    ) -> tuple[int, int]:
        counts = super()._index(slot, rows, number, pause)
        n_rows, count = self.schema.rows, len(rows)
        positions = np.arange(n_rows)
        flags = self._segments["flags"][slot : slot + count]
        ends = np.where(flags >= END, positions, n_rows - 1)
        # The first end at or after each row, from the last row on.
        first = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        later = np.minimum(first - positions, self._horizon)
        self._later[slot * n_rows : (slot + count) * n_rows] = later.ravel()
        return counts
