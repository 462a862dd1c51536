"""Builds the trainer of one configuration: the only module that knows the modes.

config = replace(preset("sac"), mode="sync", max_env_steps=10_000)
result = build_trainer(config).train()
"""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path
from typing import Unpack

from asyncrl.actor.process import MakeEvaluator
from asyncrl.core.settings import to_plain
from asyncrl.learner.trainer import BaseTrainer
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.env_schedule import EnvSchedule
from asyncrl.training.filming import MakeFilming
from asyncrl.training.hosted import placed
from asyncrl.training.launchers import RunLauncher
from asyncrl.training.modes import check_mode
from asyncrl.training.offline import build_offline_trainer
from asyncrl.training.parts import Elsewhere, OfflineParts
from asyncrl.training.plan import episode_evaluator_maker
from asyncrl.training.run_config import RunConfig
from asyncrl.training.synchronous import build_sync_trainer


def build_trainer(
    config: RunConfig,
    *,
    launcher: RunLauncher | Elsewhere | None = None,
    record_order: str | PathLike[str] | None = None,
    join_key: str | PathLike[str] | None = None,
    video_dir: str | PathLike[str] | None = None,
    **parts: Unpack[OfflineParts],
) -> BaseTrainer:
    """Build a run of any mode; the config defines its limits, targets and named parts.

    Takes the arguments of `train_from_data` except agent, data, environment and settings, and three
    of `build_async_trainer`, for asynchronous runs. An argument replaces the part that the config
    names; callbacks are added. `video_dir` is the directory of films; without it there are none.
    """
    place = launcher if isinstance(launcher, Elsewhere) else None
    given = {"record_order": record_order, "join_key": join_key, "launcher": place}
    check_mode(config, [name for name, part in given.items() if part is not None])
    config, launcher = placed(config, launcher)
    named = config.parts
    named.check()
    make_eval_env = partial(config.eval_env_config().build_for, config.evaluate.play.episodes)
    filled = _filled(config, parts, video_dir)
    match config.mode:
        case "async":
            return build_async_trainer(
                config.agent,
                config.env_config().build,
                config,
                make_eval_env=make_eval_env,
                make_processor=named.make_processor,
                actor_agents=named.agents_of_actors(config.agent, config.actors),
                strategy=named.make_strategy(),
                launcher=launcher,
                record_order=record_order,
                join_key=join_key,
                **filled,
            )
        case "sync":
            return build_sync_trainer(
                config.agent,
                config.sync_env_config().build,
                config,
                make_eval_env=make_eval_env,
                make_processor=named.make_processor,
                **filled,
            )
        case "offline":
            data = config.data_or_raise()
            return build_offline_trainer(config.agent, data, make_eval_env, config, **filled)


def _filming(config: RunConfig, own: MakeEvaluator | None, directory: Path) -> MakeFilming:
    """Return what makes an evaluator that films, if the environment can be filmed."""
    evaluate, environments = config.evaluate, config.eval_env_config()
    make_eval_env = partial(environments.build_for, evaluate.play.episodes)
    films = MakeFilming(
        make_evaluator=own or episode_evaluator_maker(make_eval_env, evaluate),
        own=own,
        env=environments,
        config=evaluate,
        directory=directory.absolute(),
        interval_opt_steps=config.video_interval_opt_steps,
    )
    films.check(config.supervision.start_timeout_s)
    return films


def _filled(
    config: RunConfig, parts: OfflineParts, video_dir: str | PathLike[str] | None
) -> OfflineParts:
    """Return the parts that all modes have: those that are given, and those of the config."""
    named = config.parts
    filled: OfflineParts = {
        "stop": config.stop_condition(),
        "run_config": to_plain(config),
        "make_evaluator": named.make_evaluator,
        **parts,
    }
    if "recorder" not in filled and named.recorders:
        filled["recorder"] = BackgroundRecorder(named.make_recorders())
    if video_dir is not None and config.video_interval_opt_steps:
        filled["make_evaluator"] = _filming(config, filled["make_evaluator"], Path(video_dir))
    # An offline run steps no training environments; its data may be of a run with a curriculum.
    has_schedule = config.env_schedule and config.mode != "offline"
    schedule = [EnvSchedule(config.env_schedule)] if has_schedule else []
    if schedule or named.callbacks:
        more = parts.get("callbacks", ())
        filled["callbacks"] = [*schedule, *named.make_callbacks(), *more]
    return filled
