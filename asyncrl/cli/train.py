"""`asyncrl train`: config from preset, file and flags; run directory; progress; summary."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Output, TrainArguments, naming_flags, parse_train
from asyncrl.cli.learners import after_restart, follow, group_of, post_run_dir, started_by
from asyncrl.cli.output import printing_log, results, show, wrapped
from asyncrl.cli.run_directory import (
    a_start,
    has_summary,
    keep_config,
    keeping_warnings,
    load_starts,
    run_dir_made,
    save_config,
    save_error,
    save_starts,
    save_summary,
)
from asyncrl.core.callback import Callback
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.evaluator import VIDEOS
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import place_in
from asyncrl.core.recorder import Recorder
from asyncrl.core.settings import to_plain
from asyncrl.extensions.ranks.share import several_learners, sharing_failure
from asyncrl.learner.observer import MakeObserver
from asyncrl.learner.train_result import TrainResult
from asyncrl.learner.trainer import Trainer
from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.terminal import ProgressConsole, TerminalRecorder, render_summary
from asyncrl.run.filming import discard_films
from asyncrl.run.run_config import RunConfig
from asyncrl.run.train import build_trainer

if TYPE_CHECKING:
    from asyncrl.core.host_link import StartedHosts
    from asyncrl.run.launchers import RunLauncher
    from asyncrl.tools.report.live import LiveReport
from asyncrl.run.signals import interrupting


def print_run(agent: str, config: RunConfig, run_dir: Path) -> None:
    """Print what is trained, where results go, and whether the run has a limit."""
    show(f"training {agent} on {config.env}, results in {run_dir}")
    if config.stop_condition() is None:
        show("no limit is set, so it trains until Ctrl-C, which saves a checkpoint first")


_PRINTED_SETTINGS = ("asyncrl.replay", "asyncrl.fleet.in_child", "asyncrl.run.hosted")


def printing_building(*, quiet: bool) -> AbstractContextManager[None]:
    """Print how long environments take to build, a replay's memory, and how hosts join."""
    return printing_log(*(() if quiet else _PRINTED_SETTINGS))


def setup_of(config: RunConfig) -> Setup:
    """Return the setup for the live view's verdict; only asynchronous runs have actors."""
    return Setup(
        actors=config.actors if config.mode == "async" else 0,
        envs_per_actor=config.envs_per_actor,
        samples_per_insert=config.with_usual_ratio().limiter.ratio,
        elsewhere=config.elsewhere,
        most_actors=config.most_actors(config.parts.actor_agents),
        served=config.inference != "actor",
    )


def recorder_of(config: RunConfig, run_dir: Path, output: Output) -> BackgroundRecorder:
    """Return the recorders of a run as one: a file in its directory, and those chosen by flags."""
    recorders: list[Recorder] = [JsonlRecorder(run_dir / "metrics.jsonl")]
    if output.csv:
        from asyncrl.recorders.csv import CsvRecorder

        recorders.append(CsvRecorder(run_dir / "metrics.csv"))
    if not output.quiet:
        stop = config.stop_condition()
        target = config.stop_at_return
        recorders.append(
            TerminalRecorder(
                ProgressConsole(file=results()),
                limits=stop.limits() if stop else {},
                target=("eval_reward", target) if target is not None else None,
                setup=setup_of(config),
                line_interval_s=output.progress_s,
            )
        )
    for one, close_s in _apart(config, run_dir, output):
        recorders.append(BackgroundRecorder([one], close_timeout_s=close_s))
    return BackgroundRecorder(recorders, close_timeout_s=_CLOSE_S)


_SERVICE_CLOSE_S = 3.0
"""Seconds in which the client of a service writes its last records."""

_OWN_CLOSE_S = 15.0
"""The same for a custom recorder, and for TensorBoard, which may be encoding a film."""

_CLOSE_S = 25.0
"""The same for all recorders, which close side by side: longer than any of them."""


def _apart(config: RunConfig, run_dir: Path, output: Output) -> Iterator[tuple[Recorder, float]]:
    """Yield the recorders that get a thread each, with the time that they may take to close.

    One that hangs or fails, as services do, thus loses its own numbers only. One that is slow, as
    TensorBoard when it encodes a film, delays no other.
    """
    name, videos = run_dir.name, run_dir / VIDEOS
    for own in config.parts.make_recorders():
        yield own, _OWN_CLOSE_S
    if output.tensorboard:
        from asyncrl.recorders.tensorboard import TensorBoardRecorder

        yield TensorBoardRecorder(run_dir / "tensorboard", videos=videos), _OWN_CLOSE_S
    if output.mlflow:
        from asyncrl.recorders.mlflow import MlflowRecorder

        directory = run_dir / "mlflow"
        yield MlflowRecorder(output.mlflow, directory=directory, videos=videos), _SERVICE_CLOSE_S
    if output.wandb:
        from asyncrl.recorders.wandb import WandbRecorder

        directory = run_dir / "wandb"
        yield WandbRecorder(output.wandb, directory, run_name=name, videos=videos), _SERVICE_CLOSE_S
    if output.trackio:
        from asyncrl.recorders.trackio import TrackioRecorder

        yield TrackioRecorder(output.trackio, run_name=name, videos=videos), _SERVICE_CLOSE_S


JOIN_KEY = "join.key"
"""The file in a run's directory with which hosts join it."""

_TUNING_S = 60.0

parse = parse_train


def run(arguments: TrainArguments, launcher: RunLauncher | None = None) -> int:
    """Train, and return the exit code. `launcher` starts the processes of an asynchronous run."""
    to_plain(arguments.config)  # settings that cannot be saved are rejected before anything starts
    group = group_of(arguments)
    with sharing_failure(group), naming_flags(arguments.given):
        if group is not None and group.rank:
            return follow(group, arguments, launcher)
        if restarted := after_restart(group, arguments):
            run_dir = arguments.output.run_dir
            assert run_dir is not None  # noqa: S101  # `after_restart` has seen to it
            return train_in(run_dir, restarted, launcher)
        if arguments.auto:
            with _run_dir(arguments):  # rejected now, not after a minute; leaves nothing
                pass
            arguments = _tuned(arguments)
        with _run_dir(arguments) as run_dir:
            return train_in(run_dir, arguments, launcher)


def train_in(run_dir: Path, arguments: TrainArguments, launcher: RunLauncher | None = None) -> int:
    """Train in an existing directory and return the exit code.

    A run that is resumed after its end is left unchanged, except for a missing summary.
    """
    post_run_dir(group_of(arguments), run_dir, resumes=bool(arguments.resume))
    shown, run_dir = run_dir, run_dir.absolute()  # environments may change the working directory
    result, exit_code = _result_in(run_dir, shown, arguments, launcher)
    if result is None:
        return exit_code
    space = "" if arguments.output.quiet else "\n"  # separates it from the last frame
    lines = render_summary({**result.summary(), "run_dir": str(shown)}).splitlines()
    text = space + "\n".join(wrapped(line, indent=13) for line in lines)
    if exit_code and result.opt_steps:
        text += f"\n  resume     asyncrl resume {shlex.quote(str(shown))}"
    if arguments.output.record_order:
        text += _order_line(run_dir, shown)
    try:
        show(text)
    except OSError:  # the output is closed, as after a hangup of the terminal
        if not exit_code:
            raise
    return exit_code or (0 if result.opt_steps else 1)


def _result_in(
    run_dir: Path, shown: Path, arguments: TrainArguments, launcher: RunLauncher | None
) -> tuple[TrainResult | None, int]:
    """Train; return the result, None if the directory stays as it is, and a signal's exit code."""
    config = arguments.config
    interrupter, starts = Interrupter(), load_starts(run_dir)
    with keeping_warnings(run_dir) as begin_log, _dashboard(arguments.output, run_dir) as dashboard:
        with printing_building(quiet=arguments.output.quiet):
            trainer = _build(arguments, run_dir, interrupter, launcher)
        with interrupting(interrupter, config.grace_s) as interrupted, closing(trainer):
            if not arguments.output.quiet:
                print_run(arguments.agent, config, shown)
            if ended := trainer.has_ended():
                result = trainer.result()
            else:
                begin_log()
                interrupted.save_summary = lambda: save_summary(trainer.result(), run_dir, starts)
                result = _trained(trainer, arguments, run_dir, starts, dashboard)
                interrupted.save_summary = None
            if ended and has_summary(run_dir, result.opt_steps):
                return None, interrupted.exit_code
            keep_config(config, run_dir)
            save_starts(starts, run_dir)  # the directory may have been created again
            save_summary(result, run_dir, starts)
    return result, interrupted.exit_code


def _dashboard(output: Output, run_dir: Path) -> AbstractContextManager[LiveReport | None]:
    """Take the port of the dashboard before anything starts; show the end of the run at the end."""
    if not output.dashboard:
        return nullcontext()
    from asyncrl.tools.report.live import LiveReport

    return closing(LiveReport(run_dir, output.dashboard_port))


def _order_line(run_dir: Path, shown: Path) -> str:
    from asyncrl.extensions.order.log import next_part, part_of
    from asyncrl.extensions.order.recording import ORDER_FILE

    path = run_dir / ORDER_FILE
    parts = [part_of(path, number) for number in range(1, next_part(path))]
    if not parts:
        return f"\n  order      {shown / ORDER_FILE} was removed; asyncrl replay needs it back"
    size = sum(part.stat().st_size for part in parts)
    return f"\n  order      {size / 1e6:.3g} MB, for asyncrl replay {shown}"


def _trained(
    trainer: Trainer,
    arguments: TrainArguments,
    run_dir: Path,
    starts: list[object],
    dashboard: LiveReport | None,
) -> TrainResult:
    save_config(arguments.config, run_dir)
    starts.append(a_start(arguments.agent, arguments.command) | started_by())
    save_starts(starts, run_dir)
    (run_dir / "error.txt").unlink(missing_ok=True)  # from a failure before this resume
    discard_films(run_dir / VIDEOS, trainer.opt_steps)
    if dashboard:
        dashboard.serve()
        show(f"dashboard: {dashboard.url}")
    silent = arguments.output.quiet or results().isatty()  # where a display is shown
    try:
        try:
            with printing_log(*(() if silent else ("asyncrl.learner.run_services",))):
                return trainer.train()
        except SystemExit as error:  # would end this process without a word
            raise AsyncRLError(
                "the environment, or other code in the learner's process, called "
                f"sys.exit({error.code!r}); raise an exception, or end the episode, instead"
            ) from error
    except Exception as error:
        save_error(error, run_dir)
        raise


def _tuned(arguments: TrainArguments) -> TrainArguments:
    """Choose the settings that were left to the search, by short runs."""
    from asyncrl.cli.tune import tune

    quiet = arguments.output.quiet
    if not quiet:
        show(f"choosing the number of actors by short runs, at most {_TUNING_S:.0f} s")
    config, tuning = tune(
        arguments.config, seconds=_TUNING_S, search_space=arguments.auto, quiet=quiet
    )
    if not quiet:
        show(tuning.sentence)
    return replace(arguments, config=config, auto=None)


def _build(
    arguments: TrainArguments,
    run_dir: Path,
    interrupter: Interrupter,
    launcher: RunLauncher | None,
) -> Trainer:
    output, config = arguments.output, arguments.config
    if config.mode != "async":
        if launcher:
            launcher.close()
            launcher = None
        # The run builds environments in this process; first a child finds those that crash or hang.
        if config.mode == "sync" or config.evaluate.where != "off":
            from asyncrl.run.describe_env import describe_env_of_run

            describe_env_of_run(config)
    recorder = recorder_of(config, run_dir, output)
    if not arguments.resume:
        # Discard records of an earlier run in this directory.
        recorder.resume_at(env_steps=0, opt_steps=0)
    return build_trainer(
        config,
        launcher=launcher,
        recorder=recorder,
        callbacks=_callbacks(output, run_dir),
        checkpoint_dir=run_dir / "checkpoints",
        resume=arguments.resume,
        interrupter=interrupter,
        learners=several_learners if place_in(os.environ) else None,
        observers=_observers(arguments, run_dir),
        join_key=_key_file(config, run_dir),
        start_hosts=_on_ray if (config.mode, config.launcher) == ("async", "ray") else None,
        video_dir=run_dir / VIDEOS,
    )


def _observers(arguments: TrainArguments, run_dir: Path) -> list[MakeObserver] | None:
    """Return what records the order, if that is wanted; a resumed run continues to record it."""
    if not (arguments.output.record_order or arguments.resume):
        return None
    from asyncrl.extensions.order.recording import ORDER_FILE, record_order

    path = run_dir / ORDER_FILE
    wanted = arguments.output.record_order or path.exists()
    return [record_order(path)] if wanted else None


def _on_ray(config: RunConfig) -> StartedHosts:
    from asyncrl.extensions.ray.hosts import on_ray

    return on_ray(config)


def _key_file(config: RunConfig, run_dir: Path) -> Path | None:
    """Return where the key is written that hosts join with."""
    joined = config.mode == "async" and config.launcher == "hosts"
    return run_dir / JOIN_KEY if joined else None


def _callbacks(output: Output, run_dir: Path) -> list[Callback]:
    if not output.profile_opt_steps:
        return []
    from asyncrl.agents.parts.profiler import Profiler

    return [Profiler(run_dir / "profile.json", output.profile_opt_steps)]


def _run_dir(arguments: TrainArguments) -> AbstractContextManager[Path]:
    """Create the directory given by `--run-dir`, or a new one named after the run."""
    if arguments.output.run_dir:
        return run_dir_made(arguments.output.run_dir)
    agent, env = arguments.agent.rpartition(":")[2], arguments.config.env
    module, _, name = env.rpartition(":")
    if module and name.isidentifier():  # a function, often called `make`: its module names it
        name = f"{module.rpartition('.')[2]}.{name}"
    name = f"{agent}-{name.replace('/', '-')}-{arguments.config.seed}"
    return run_dir_made(Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}", numbered=True)
