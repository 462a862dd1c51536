"""The layout of a run's experience, derived from agent, environment and settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from asyncrl.actor.step_processor import StepProcessor, made_for, make_one_step, schema_of
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import BatchEnv, EnvDescription
from asyncrl.core.goals import with_goals
from asyncrl.core.replay_buffer import ReplayBufferConfig, with_start_columns
from asyncrl.core.segment import SegmentConfig, SegmentSchema

logger = logging.getLogger(__name__)


class Layout:
    """How steps become rows of a replay, and the replay's settings."""

    def __init__(
        self,
        agent: AgentConfig,
        env: BatchEnv | EnvDescription,
        replay: ReplayBufferConfig,
        segment: SegmentConfig,
        make_processor: Callable[[], StepProcessor] | None = None,
    ) -> None:
        """Derive the layout; raise `ConfigError` if the parts do not fit together.

        `env` are the environments, or what is known of them.
        """
        spec, n_frames = env.spec, getattr(env, "n_frames", 1)
        if n_frames > segment.frame_stack == 1 and make_processor is None:
            logger.warning(
                "observations are stacks of %d frames, each of which is sent and stored %d times; "
                "set segment.frame_stack=%d to send and store it once",
                *[n_frames] * 3,
            )
        extras = agent.extra_columns(spec)
        make_processor = make_processor or partial(make_one_step, segment, extras)
        self.replay = with_goals(with_start_columns(replay, extras), env)
        self.make_processor: Callable[[], StepProcessor] = partial(
            made_for, make_processor, spec, extras
        )
        self.schema: SegmentSchema = schema_of(
            self.make_processor(), spec, extras, segment, lookahead=replay.lookahead
        )
