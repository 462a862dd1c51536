"""DQN on an Atari game, from pixels: `pip install 'asyncrl[atari]'`.

Frames are stacked when they are sampled, so each frame is sent and stored once. The agent begins to
win at Pong after a few hundred thousand environment steps, about an hour on a few cores.

    python -m examples.atari
"""

from __future__ import annotations

from asyncrl import (
    AsyncTrainerConfig,
    EnvConfig,
    EpisodeEvaluatorConfig,
    EpsilonLadder,
    EvaluationConfig,
    MaxOptSteps,
    RateLimiterConfig,
    ReachesUpperBound,
    RunConfig,
    SegmentConfig,
    TrainResult,
    train_async,
)
from asyncrl.agents.dqn import DQNConfig
from asyncrl.recorders.terminal import TerminalRecorder
from asyncrl.replay.prioritized import PrioritizedReplayConfig


def main(
    max_opt_steps: int = 500_000, *, warm_up: int = 10_000, episode_steps: int = 27_000
) -> TrainResult:
    """Train; each actor has its own exploration rate, as in Ape-X."""
    stop = ReachesUpperBound("eval_reward", 15.0) | MaxOptSteps(max_opt_steps)
    return train_async(
        DQNConfig(
            hidden=(512,),  # after the convolutions of Mnih et al. (2015)
            learning_rate=1e-4,
            loss="huber",
            tau=0.0,
            target_interval_opt_steps=2000,
            exploration=EpsilonLadder(decay_env_steps=100_000),
        ),
        EnvConfig(id="ALE/Pong-v5", n_envs=8).build,
        RunConfig(
            actors=2,
            segment=SegmentConfig(length=64, frame_stack=4),
            replay=PrioritizedReplayConfig(capacity=max(20 * warm_up, 1000), n_step=3),
            limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=warm_up),
            trainer=AsyncTrainerConfig(batch_size=32),
            evaluate=EvaluationConfig(
                play=EpisodeEvaluatorConfig(episodes=8, max_episode_steps=episode_steps),
                interval_opt_steps=10_000,
            ),
        ),
        stop=stop,
        recorder=TerminalRecorder(limits=stop.limits(), target=("eval_reward", 15.0)),
    )


if __name__ == "__main__":
    main()
