"""Builds and trains a run of any mode.

    config = replace(preset("sac"), mode="sync", max_env_steps=10_000)
    result = train(config)

`train_async`, `train_sync` and `train_from_data` are short names for agents, environments and data
that are objects of Python.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvSource, EnvSpec, MakeBatchEnv, source_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.recorder import Recorder
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.settings import to_parameters
from asyncrl.learner.stop_conditions import as_condition, check_can_hold
from asyncrl.learner.train_result import TrainResult
from asyncrl.learner.trainer import Trainer
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.run.env_schedule import EnvSchedule
from asyncrl.run.evaluators import evaluator_maker
from asyncrl.run.modes import check_mode
from asyncrl.run.parts import Parts, check_parts, placed
from asyncrl.run.run_config import RunConfig, config_or_default, offline_defaults, recorded_by_steps
from asyncrl.run.signals import interrupting


def train(
    config: RunConfig,
    *,
    agent: AgentConfig | None = None,
    env: MakeBatchEnv | EnvSpec | None = None,
    data: str | PathLike[str] | ReplayBuffer | None = None,
    signals: bool = False,
    **parts: Unpack[Parts],
) -> TrainResult:
    """Train in the config's mode and return the result. Takes the arguments of `build_trainer`.

    With `signals`, as in the command line, SIGINT, SIGTERM and SIGHUP end the run after a
    checkpoint, within `grace_s`, and a second one ends the process; SIGUSR1 saves a checkpoint.
    """
    trainer = build_trainer(config, agent=agent, env=env, data=data, **parts)
    interrupts = interrupting(trainer.interrupter, config.grace_s) if signals else nullcontext()
    with closing(trainer), interrupts:
        return trainer.train()


def train_async(
    agent: AgentConfig,
    env: MakeBatchEnv,
    config: RunConfig | None = None,
    *,
    signals: bool = False,
    **parts: Unpack[Parts],
) -> TrainResult:
    """Train an agent with actor processes, as `train` does."""
    config = config_or_default(agent, config, "async")
    return train(config, env=env, signals=signals, **parts)


def train_sync(
    agent: AgentConfig,
    env: MakeBatchEnv,
    config: RunConfig | None = None,
    *,
    signals: bool = False,
    **parts: Unpack[Parts],
) -> TrainResult:
    """Train an agent in this process and thread, as `train` does.

    Unless the config says when, numbers are recorded by steps, so that two runs record the same.
    """
    config = recorded_by_steps(config_or_default(agent, config, "sync"))
    return train(config, env=env, signals=signals, **parts)


def train_from_data(
    agent: AgentConfig,
    data: str | PathLike[str] | ReplayBuffer,
    env: MakeBatchEnv | EnvSpec,
    config: RunConfig | None = None,
    *,
    signals: bool = False,
    **parts: Unpack[Parts],
) -> TrainResult:
    """Train an agent on saved segments, or on a filled buffer, as `train` does.

    `env` serves evaluations only. Without a config, batches are larger and evaluations fewer than
    in other modes, and checkpoints hold no copy of the data. Records are as in `train_sync`.
    """
    config = config_or_default(agent, config or offline_defaults(agent), "offline")
    config = recorded_by_steps(config)
    return train(config, data=data, env=env, signals=signals, **parts)


def build_trainer(
    config: RunConfig,
    *,
    agent: AgentConfig | None = None,
    env: MakeBatchEnv | EnvSpec | None = None,
    data: str | PathLike[str] | ReplayBuffer | None = None,
    **parts: Unpack[Parts],
) -> Trainer:
    """Build a run of the config's mode. All that can be checked is checked before a process starts.

    Args:
        config: All settings. What follows replaces what they name.
        agent: The algorithm and its settings.
        env: Builds the environments of one actor, in its process, or all of a run without actors;
            see `envs/`. On data, those for evaluations: without any, or with a custom evaluator, an
            `EnvSpec` will do.
        data: What to learn from without environments: the directory of a run, of its checkpoints,
            or of a saved replay; or a filled buffer.
        parts: See `Parts`.
    """
    check_parts(parts)
    config = placed(config_or_default(agent, config), parts)
    given = {**parts, "data": data}
    check_mode(config, [name for name, part in given.items() if part is not None])
    config.parts.check()
    parts = {**parts, **_named_parts(config, parts)}
    if parts.get("run_config") is None:
        parts["run_config"] = _described(config, env)
    env = _with_named_env(config, parts) if env is None else _with_env(config, parts, env)
    parts["recorder"] = _recorder_of(parts)
    check_can_hold(parts.get("stop"), config.evaluations_off)
    match config.mode:  # which loads what it needs
        case "async":
            from asyncrl.run.asynchronous import build_async_trainer  # noqa: PLC0415

            return build_async_trainer(config, env, parts)
        case "sync":
            from asyncrl.run.synchronous import build_sync_trainer  # noqa: PLC0415

            return build_sync_trainer(config, env, parts)
        case "offline":
            from asyncrl.run.offline import build_offline_trainer  # noqa: PLC0415

            source = config.data_or_raise() if data is None else data
            return build_offline_trainer(config, env, source, parts)


def _named_parts(config: RunConfig, given: Parts) -> Parts:
    """Return the parts that the settings stand for, unless they are given."""
    named, mine = config.parts, Parts()
    if "stop" not in given:
        mine["stop"] = config.stop_condition()
    if "make_evaluator" not in given:
        mine["make_evaluator"] = named.make_evaluator
    if "make_processor" not in given:
        mine["make_processor"] = named.make_processor
    if "actor_agents" not in given:
        mine["actor_agents"] = named.agents_of_actors(config.agent, config.actors)
    if "strategy" not in given:
        mine["strategy"] = named.make_strategy()
    if "recorder" not in given and named.recorders:
        mine["recorder"] = BackgroundRecorder(named.make_recorders())
    # An offline run steps no training environments; its data may be of a run with a curriculum.
    has_schedule = config.env_schedule and config.mode != "offline"
    schedule = [EnvSchedule(config.env_schedule)] if has_schedule else []
    mine["callbacks"] = [*schedule, *named.make_callbacks(), *given.get("callbacks", ())]
    return mine


def _recorder_of(parts: Parts) -> Recorder | None:
    """Return a recorder that writes in a thread, so that one that is slow or fails harms nothing.

    Unless the caller does, choose one that shows the progress.
    """
    if "recorder" in parts:
        recorder = parts["recorder"]
    else:
        stop = parts.get("stop")
        limits = {} if stop is None else as_condition(stop).limits()
        from asyncrl.recorders.terminal import TerminalRecorder  # noqa: PLC0415  # loads rich

        recorder = TerminalRecorder(limits=limits)
    if recorder is None or isinstance(recorder, BackgroundRecorder):
        return recorder
    return BackgroundRecorder([recorder])


_OF_NAMED_ENV = (
    *("env", "env_kwargs", "eval_env_kwargs", "env_info", "env_wrappers"),
    *("envs_per_actor", "vectorization"),
)
"""Settings of an environment that is given by name, not as an argument."""


def _described(config: RunConfig, make_env: object) -> dict[str, Any]:
    """Return plain values that describe a run; with `make_env`, if that replaces what they name."""
    settings = {n: v for n, v in to_parameters(config).items() if n != "type"}
    if make_env is None:
        return settings
    env = make_env.of if isinstance(make_env, EnvSource) else make_env
    own = {n: v for n, v in settings.items() if n not in _OF_NAMED_ENV}
    return own | {"env": to_parameters(env)}


def _with_env(config: RunConfig, parts: Parts, env: Any) -> Any:  # noqa: ANN401
    """Return the environments that are given, and add those for evaluations."""
    if parts.get("video_dir") is not None:
        raise ConfigError("video_dir films environments that the config names; leave env out")
    if config.mode == "offline":
        parts["make_eval_env"] = None if isinstance(env, EnvSpec) else env
    elif parts.get("make_eval_env") is None:
        parts["make_eval_env"] = source_of(env).for_episodes(config.evaluate.play.episodes)
    return env


def _with_named_env(config: RunConfig, parts: Parts) -> MakeBatchEnv:
    """Return the environments that the settings name, and add those for evaluations, and films."""
    evaluated = config.eval_env_config().build_for(config.evaluate.play.episodes)
    parts["make_eval_env"] = parts.get("make_eval_env") or evaluated
    if (directory := parts.get("video_dir")) is not None and config.video_interval_opt_steps:
        parts["make_evaluator"] = _filming(config, parts.get("make_evaluator"), Path(directory))
    return evaluated if config.mode == "offline" else config.envs_of_training().build


def _filming(config: RunConfig, own: MakeEvaluator | None, directory: Path) -> MakeEvaluator:
    """Return what makes an evaluator that films, if the environment can be filmed."""
    from asyncrl.run.filming import MakeFilming  # noqa: PLC0415  # few runs

    evaluate, environments = config.evaluate, config.eval_env_config()
    make_eval_env = environments.build_for(evaluate.play.episodes)
    films = MakeFilming(
        make_evaluator=evaluator_maker(own, make_eval_env, evaluate),
        own=own,
        env=environments,
        config=evaluate,
        directory=directory.absolute(),
        interval_opt_steps=config.video_interval_opt_steps,
    )
    films.check(config.supervision.start_timeout_s)
    return films
