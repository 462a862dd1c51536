"""Wires a run in one process, reproducible bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import open_checkpoints
from asyncrl.core.agent import Agent, AgentConfig, build_agent
from asyncrl.core.env import BatchEnv, MakeBatchEnv, make_batch_env, source_of
from asyncrl.core.evaluator import Evaluator
from asyncrl.core.ranks import refuse_several
from asyncrl.core.replay_buffer import check_agent_and_replay
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.torch_threads import are_adaptive
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.trainer import Trainer
from asyncrl.run.common_config import building, open_env
from asyncrl.run.evaluate_apart import apart_unless
from asyncrl.run.inline_source import InlineSource
from asyncrl.run.layout import Layout
from asyncrl.run.parts import Parts, common_parts
from asyncrl.run.rounds import Rounds, inline_segment
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf


def build_sync_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> Trainer:
    """Build a synchronous run, for `build_trainer`."""
    refuse_several("train_sync")
    rounds, agent, make_evaluator = Rounds.of(config), config.agent, parts.get("make_evaluator")
    check_agent_and_replay(agent, config.replay)
    make_eval_env = parts.get("make_eval_env") or make_env
    checkpointer, checkpoint = open_checkpoints(
        parts.get("checkpoint_dir"),
        keep=config.save.keep,
        resume=parts.get("resume", False),
        config=parts.get("run_config"),
    )
    with building(checkpointer) as closing:
        env = open_env(make_env, closing)
        layout = _layout(agent, env, config, parts.get("make_processor"))
        learner = build_agent(agent, env.spec, config.context(env.n_envs))
        source = InlineSource(
            learner,
            env,
            layout.replay.build(layout.schema, derive_seed(config.seed, Role.REPLAY)),
            rounds,
            schema=layout.schema,
            segment=config.segment,
            processor=layout.make_processor(),
            seed=config.seed,
            change_env=source_of(make_env).with_kwargs,
        )
        return Trainer(
            learner,
            source,
            evaluation=_evaluation(config, make_evaluator, make_eval_env, learner, closing),
            checkpointer=checkpointer,
            interrupter=parts.get("interrupter"),
            checkpoint=checkpoint,
            strategy=parts.get("strategy"),
            make_policy=PolicyOf(agent, env.spec),
            evaluate_apart=apart_unless(make_evaluator, agent, make_eval_env, config.evaluate),
            adaptive_threads=are_adaptive(agent, learner),
            closing=closing,
            stop=parts.get("stop"),
            services=config,
            **common_parts(parts),
        )


def _layout(
    agent: AgentConfig,
    env: BatchEnv,
    config: RunConfig,
    make_processor: Callable[[], StepProcessor] | None,
) -> Layout:
    return Layout(
        agent,
        env.spec,
        config.replay,
        inline_segment(config, env.n_envs),
        make_processor,
        goal_reward=lambda: getattr(env, "goal_reward", None),
        n_frames=getattr(env, "n_frames", 1),
    )


def _evaluation(
    config: RunConfig,
    own: MakeEvaluator | None,
    make_env: MakeBatchEnv,
    learner: Agent,
    closing: ExitStack,
) -> InlineEvaluation | None:
    if config.evaluate.where == "off":
        return None
    if own:
        evaluator: Evaluator = own()
    else:
        env = make_batch_env(make_env, "make_eval_env")
        seed = derive_seed(config.evaluate.seed, Role.EVALUATION)
        evaluator = EpisodeEvaluator(env, config.evaluate.play, seed)
    closing.callback(evaluator.close)
    return InlineEvaluation(evaluator, learner)
