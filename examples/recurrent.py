"""A recurrent agent: R2D2 on CartPole with the velocities removed from observations.

A single observation does not show whether the pole is falling or rising. The replay samples
sequences of rows. It stores the actor's recurrent state at the first row of each sequence.

    python -m examples.recurrent
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from asyncrl import (
    AsyncTrainerConfig,
    MaxOptSteps,
    RateLimiterConfig,
    ReachesUpperBound,
    RunConfig,
    SegmentConfig,
    TrainResult,
    make_batch,
    train_async,
)
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.run.run_config import EvaluationConfig

BURN_IN = 8
"""Burn-in: the first rows of a sequence, which only warm up the recurrent state."""


def make_env() -> gym.Env[Any, Any]:
    """Return CartPole without its velocities."""
    env = gym.make("CartPole-v1")
    space = Box(-5.0, 5.0, (2,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], space)


def main(max_opt_steps: int = 20_000) -> TrainResult:
    """Train until the pole stays up for 400 steps on average."""
    result = train_async(
        R2D2Config(memory="gru", burn_in=BURN_IN),
        make_batch(make_env, n_envs=8),
        RunConfig(
            actors=2,
            segment=SegmentConfig(length=32),
            replay=PrioritizedSequenceReplayConfig(
                sequence_length=16, burn_in=BURN_IN, stride=8, n_step=3
            ),
            # With a replay of sequences, these settings count sequences.
            limiter=RateLimiterConfig(samples_per_insert=128.0, min_size=25),
            trainer=AsyncTrainerConfig(
                batch_size=32,
                sync_interval_opt_steps=20,
            ),
            evaluate=EvaluationConfig(interval_opt_steps=200),
        ),
        stop=ReachesUpperBound("eval_reward", 400.0) | MaxOptSteps(max_opt_steps),
    )
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main()
