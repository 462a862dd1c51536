"""The layout of a run's experience, derived from agent, environment and settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from asyncrl.actor.step_processor import StepProcessor, made_for, make_one_step, schema_of
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.goals import GoalReward, with_goals
from asyncrl.core.replay_buffer import ReplayBufferConfig, with_start_columns
from asyncrl.core.segment import SegmentConfig, SegmentSchema


class Layout:
    """How steps become rows of a replay, and the replay's settings."""

    def __init__(
        self,
        agent: AgentConfig,
        spec: EnvSpec,
        replay: ReplayBufferConfig,
        segment: SegmentConfig,
        make_processor: Callable[[], StepProcessor] | None = None,
        *,
        goal_reward: Callable[[], GoalReward | None] = lambda: None,
    ) -> None:
        """Derive the layout; raise `ConfigError` if the parts do not fit together.

        `goal_reward` is called if the replay relabels goals.
        """
        extras = agent.extra_columns(spec)
        make_processor = make_processor or partial(make_one_step, segment, extras)
        self.replay = with_goals(with_start_columns(replay, extras), spec, goal_reward)
        self.make_processor: Callable[[], StepProcessor] = partial(
            made_for, make_processor, spec, extras
        )
        self.schema: SegmentSchema = schema_of(
            self.make_processor(), spec, extras, segment, lookahead=replay.lookahead
        )
