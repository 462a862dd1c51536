"""Wires an offline run: learning from saved experience.

    result = train_from_data(
        IQLConfig(),
        Path("runs/pendulum/checkpoints"),          # of a run, or a directory of `save_replay`
        EnvConfig(id="Pendulum-v1", n_envs=10).build,
        RunConfig(replay=UniformReplayConfig(capacity=200_000)),
        stop=MaxOptSteps(50_000),
        checkpoint_dir=Path("runs/offline"),
    )

Instead of the path, a buffer with other data can be given: `tools/datasets/episodes.py` makes one
of arrays, `tools/datasets/minari.py` of Minari data sets. Environments are for evaluations only.
`train_async` with the same config can continue training online.
"""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.actor.step_processor import make_one_step
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.agent import AgentConfig, build_agent
from asyncrl.core.env import EnvSpec, MakeBatchEnv, source_of, spec_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluator, MakeEvaluator
from asyncrl.core.replay_buffer import ReplayBuffer, with_start_columns
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.learner.evaluation import InlineEvaluation
from asyncrl.learner.run_services import POLICY
from asyncrl.learner.source import DataSource
from asyncrl.learner.trainer import Trainer
from asyncrl.replay.files import read_saved, replay_of
from asyncrl.run.evaluators import custom_evaluator
from asyncrl.run.parts import Parts, in_one_process, open_env, trainer_of
from asyncrl.run.run_config import RunConfig


def build_offline_trainer(
    config: RunConfig,
    make_env: MakeBatchEnv | EnvSpec,
    data: str | PathLike[str] | ReplayBuffer,
    parts: Parts,
) -> Trainer:
    """Build an offline run, for `build_trainer`. The trainer closes the environment.

    A resumed run needs the same data. It continues bit by bit if its checkpoint holds the replay,
    else batches are sampled with another seed. Raises `ConfigError` for data that does not fit,
    `CheckpointError` for a damaged file.
    """
    with in_one_process("train_from_data", config, parts) as opened:
        place = _place(make_env, parts.get("make_evaluator"), config, data, opened.closing)
        buffer = _load(place, config, opened.checkpoint)
        learner = build_agent(config.agent, place.spec, config.context(place.n_envs))
        source = DataSource(buffer, batch_size=config.trainer.batch_size)
        evaluation = InlineEvaluation(place.evaluator, learner) if place.evaluator else None
        return trainer_of(
            Trainer, config, parts, opened, learner, source, spec=place.spec, evaluation=evaluation
        )


class _Place(NamedTuple):
    """What the agent learns from, where it acts, and what evaluates it there, if anything does."""

    data: Checkpoint | ReplayBuffer
    spec: EnvSpec
    n_envs: int = 1
    evaluator: Evaluator | None = None


def _place(
    make_env: MakeBatchEnv | EnvSpec,
    make_evaluator: MakeEvaluator | None,
    config: RunConfig,
    data: str | PathLike[str] | ReplayBuffer,
    closing: ExitStack,
) -> _Place:
    if config.replay.once:
        raise ConfigError(
            f"{type(config.replay).__name__} samples each transition once, so the saved data would "
            "soon be used up; set replay to one that keeps it, such as UniformReplayConfig"
        )
    own, evaluates = None, config.evaluate.where != "off"
    if make_evaluator and evaluates:
        own = make_evaluator()
        closing.callback(own.close)
    if isinstance(make_env, EnvSpec):
        if evaluates and not own:
            raise ConfigError(
                "nothing can be evaluated in an EnvSpec; set evaluate to "
                'EvaluationConfig(where="off"), or pass a function that builds environments'
            )
        return _Place(_read(data), make_env, evaluator=own)
    source_of(make_env)
    saved = None
    if custom_evaluator(make_evaluator) or not evaluates:
        saved = _read(data)
        if known := saved.meta.get(POLICY) if isinstance(saved, Checkpoint) else {}:
            return _Place(saved, spec_of(known["spaces"]), evaluator=own)
    env = open_env(make_env, closing)  # before the data is read, which may take long
    saved = _read(data) if saved is None else saved
    if own is None and evaluates:
        seed = derive_seed(config.evaluate.seed, Role.EVALUATION)
        own = EpisodeEvaluator(env, config.evaluate.play, seed)
    return _Place(saved, env.spec, env.n_envs, own)


def _read(data: str | PathLike[str] | ReplayBuffer) -> Checkpoint | ReplayBuffer:
    return read_saved(Path(data)) if isinstance(data, str | PathLike) else data


def _load(place: _Place, config: RunConfig, checkpoint: Checkpoint | None) -> ReplayBuffer:
    """Return the data as a buffer that holds the columns this agent needs."""
    agent, data, spec = config.agent, place.data, place.spec
    if isinstance(data, Checkpoint):
        done = [checkpoint.count("opt_steps")] if checkpoint else []
        replay = with_start_columns(config.replay, agent.extra_columns(spec))
        seed = derive_seed(config.seed, Role.REPLAY, *done)
        data = replay_of(data, replay, seed=seed)
    schema: SegmentSchema | None = getattr(data, "schema", None)
    if schema is not None:
        _check_columns(schema, agent, spec)
    return data


def _check_columns(schema: SegmentSchema, agent: AgentConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` if the data lacks a column, or is of another environment."""
    extras = agent.extra_columns(spec)
    processor = make_one_step(SegmentConfig(frame_stack=schema.frame_stack), extras)
    found = {column.name: column for column in schema.columns}
    for column in processor.columns(spec, extras):
        here = found.get(column.name)
        if here is None:
            raise ConfigError(
                f"the data has no column {column.name}, which this agent needs; it has "
                f"{sorted(found)}. Change the agent's settings so that it does not need the "
                "column, or save data from a run whose agent stores it"
            )
        if here != column:
            raise ConfigError(
                f"the data is not of this environment: its column {column.name} is {here.dtype} of "
                f"shape {here.shape}, but the environment's is {column.dtype} of {column.shape}"
            )
