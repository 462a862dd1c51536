"""Learning without an environment: a buffer is filled once, and then trained from."""

from __future__ import annotations

from asyncrl import OneStep, PolicyContext, Trainer, TrainerConfig, train_offline
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.exploration import EpsilonGreedy
from asyncrl.bookkeeper import BookkeepingConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.segment import make_schema
from asyncrl.stop_conditions import MaxEnvSteps, MaxOptSteps
from asyncrl.train_result import TrainResult


def main(env_steps: int = 20_000, opt_steps: int = 4000) -> TrainResult:
    """Fill a buffer with actions taken at random, then learn from that alone."""
    make_env = EnvConfig(id="CartPole-v1", n_envs=8).build
    env = make_env()
    processor = OneStep()
    replay = UniformReplayConfig(capacity=50_000, n_step=3)
    schema = make_schema(processor.columns(env.spec, ()), length=1, lookahead=replay.lookahead)
    buffer = replay.build(schema, seed=0)
    at_random = EpsilonGreedy(epsilon=1.0)
    agent = DQNConfig(hidden=(64, 64), exploration=at_random).build(
        env.spec, PolicyContext(seed=0, n_envs=8)
    )

    # The synchronous trainer collects; a warm-up as long as the run means that it never learns.
    Trainer(
        agent,
        env,
        buffer,
        TrainerConfig(warmup_env_steps=env_steps),
        schema=schema,
        processor=processor,
        seed=0,
        stop=MaxEnvSteps(env_steps),
    ).train()

    evaluator = EpisodeEvaluator(make_env(), EpisodeEvaluatorConfig(episodes=8), seed=1)
    result = train_offline(
        agent,
        buffer,
        books=BookkeepingConfig(eval_interval_opt_steps=1000),
        evaluator=evaluator,
        stop=MaxOptSteps(opt_steps),
    )
    print(f"{result.best_score:.0f} from {len(buffer)} transitions of random actions")
    evaluator.close()
    env.close()
    return result


if __name__ == "__main__":
    main()
