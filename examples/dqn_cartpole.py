"""DQN on CartPole with two actor processes, until it balances for 475 steps on average."""

from __future__ import annotations

from asyncrl import (
    AsyncTrainerConfig,
    EnvConfig,
    MaxOptSteps,
    RateLimiterConfig,
    ReachesUpperBound,
    RunConfig,
    TrainResult,
    train_async,
)
from asyncrl.agents.dqn import DQNConfig
from asyncrl.recorders.terminal import TerminalRecorder, render_summary
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig


def main(max_opt_steps: int = 20_000) -> TrainResult:
    """Train, and show progress in the terminal."""
    stop = ReachesUpperBound("eval_reward", 475) | MaxOptSteps(max_opt_steps)
    recorder = TerminalRecorder(limits=stop.limits(), target=("eval_reward", 475))
    result = train_async(
        DQNConfig(),
        EnvConfig(id="CartPole-v1", n_envs=16).build,
        RunConfig(
            actors=2,
            replay=UniformReplayConfig(n_step=5, gamma=0.99),
            limiter=RateLimiterConfig(samples_per_insert=4.0),
            trainer=AsyncTrainerConfig(
                batch_size=256,
                sync_interval_opt_steps=20,
            ),
            evaluate=EvaluationConfig(interval_opt_steps=250),
        ),
        stop=stop,
        recorder=recorder,
    )
    print(render_summary(result.summary()))
    return result


if __name__ == "__main__":
    main()
