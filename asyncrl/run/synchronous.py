"""Wires a run in one process, reproducible bit by bit."""

from __future__ import annotations

from asyncrl.actor.step_processor import Layout
from asyncrl.core.agent import build_agent
from asyncrl.core.env import MakeBatchEnv, source_of
from asyncrl.core.replay_buffer import check_agent_and_replay
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.learner.trainer import Trainer
from asyncrl.run.evaluators import evaluation_here, evaluator_maker
from asyncrl.run.inline_source import InlineSource
from asyncrl.run.parts import Parts, in_one_process, open_env, trainer_of
from asyncrl.run.run_config import Rounds, RunConfig, inline_segment


def build_sync_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> Trainer:
    """Build a synchronous run, for `build_trainer`."""
    rounds, agent, play = Rounds.of(config), config.agent, config.evaluate
    check_agent_and_replay(agent, config.replay)
    make_eval_env = parts.get("make_eval_env") or make_env
    evaluate = evaluator_maker(parts.get("make_evaluator"), make_eval_env, play)
    with in_one_process("train_sync", config, parts) as opened:
        env = open_env(make_env, opened.closing)
        segment = inline_segment(config, env.n_envs)
        layout = Layout(agent, env, config.replay, segment, parts.get("make_processor"))
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
        evaluation = evaluation_here(play, evaluate, learner, opened.closing)
        return trainer_of(
            Trainer, config, parts, opened, learner, source, spec=env.spec, evaluation=evaluation
        )
