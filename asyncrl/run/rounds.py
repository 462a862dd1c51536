"""How environment steps and optimisation steps alternate in a run of one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import transitions_per_sample
from asyncrl.core.segment import SegmentConfig
from asyncrl.run.run_config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How many environment steps and how many optimisation steps take turns.

    Derived from the settings of a run, so that each transition is sampled as often as with actors.
    """

    batch_size: int
    """Transitions per batch."""

    opt_interval_env_steps: int = 1
    """Environment steps between two rounds of optimisation."""

    opt_steps_per_interval: int = 1
    """Optimisation steps per round."""

    warmup_env_steps: int = 0
    """Environment steps before the first round. Until then nothing is optimised or evaluated."""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the rounds of a run; one of each batch where transitions are sampled once."""
        batch_size, replay = config.trainer.batch_size, config.replay
        if replay.once:
            return cls(batch_size=batch_size, opt_interval_env_steps=batch_size)
        samples = config.with_usual_ratio().limiter.ratio
        if not samples:
            raise ConfigError(
                "limiter.samples_per_insert is off, which does not define how often mode=sync "
                "learns; set it"
            )
        stride = transitions_per_sample(replay)
        per_env_step = Fraction(samples / batch_size).limit_denominator(100_000) / stride
        return cls(
            batch_size=batch_size,
            opt_interval_env_steps=per_env_step.denominator,
            opt_steps_per_interval=per_env_step.numerator,
            warmup_env_steps=config.limiter.min_size * stride,
        )


def inline_segment(config: RunConfig, n_envs: int) -> SegmentConfig:
    """Return the segments in which environments of this process store their steps.

    Those of one row store each step as soon as its successor is known, but a segment repeats all
    rows that it looks ahead to. Where each transition is sampled once, all segments are cut before
    each round, which so learns from all that the newest model collected.
    """
    segment, replay = config.segment, config.replay
    if replay.once:
        # A quarter more rows than transitions, for the ends of episodes.
        return replace(segment, length=-(-config.trainer.batch_size * 5 // (4 * n_envs)) + 1)
    return replace(segment, length=1) if replay.lookahead == segment.frame_stack == 1 else segment
