"""The layout of a run's experience, derived from agent, environment and settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from asyncrl.actor.step_processor import StepProcessor, made_for, make_one_step, schema_of
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.goals import GoalReward, with_goals
from asyncrl.core.replay_buffer import ReplayBufferConfig, with_start_columns
from asyncrl.core.segment import SegmentConfig, SegmentSchema

logger = logging.getLogger(__name__)


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
        n_frames: int = 1,
    ) -> None:
        """Derive the layout; raise `ConfigError` if the parts do not fit together.

        `goal_reward` is called if the replay relabels goals. `n_frames` is the number of frames
        that an environment stacks.
        """
        if n_frames > segment.frame_stack == 1 and make_processor is None:
            logger.warning(
                "observations are stacks of %d frames, each of which is sent and stored %d times; "
                "set segment.frame_stack=%d to send and store it once",
                *[n_frames] * 3,
            )
        extras = agent.extra_columns(spec)
        make_processor = make_processor or partial(make_one_step, segment, extras)
        self.replay = with_goals(with_start_columns(replay, extras), spec, goal_reward)
        self.make_processor: Callable[[], StepProcessor] = partial(
            made_for, make_processor, spec, extras
        )
        self.schema: SegmentSchema = schema_of(
            self.make_processor(), spec, extras, segment, lookahead=replay.lookahead
        )
