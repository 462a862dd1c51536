"""`asyncrl train`: config from preset, file and flags; run directory; progress; summary."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from asyncrl.bench.tuner import SearchSpace
from asyncrl.checkpoint.resume import Resume
from asyncrl.cli.flags import (
    REGISTRY,
    check_config_file,
    dashed,
    flag_of,
    for_hosts,
    value_of,
    without_rare,
)
from asyncrl.cli.learners import after_restart, follow, group_of, post_run_dir, started_by
from asyncrl.cli.output import printing_log, results, show, wrapped
from asyncrl.cli.parser import parsed
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
from asyncrl.cli.signals import interrupting
from asyncrl.cli.tune import tune
from asyncrl.core.callback import Callback
from asyncrl.core.declared import COMMON, Count, CountOrOff, NotNegative, Port, check_declared
from asyncrl.core.errors import AsyncRLError, ConfigError
from asyncrl.core.evaluator import VIDEOS
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Recorder
from asyncrl.core.settings import to_plain
from asyncrl.learner.order_log import next_part, part_of
from asyncrl.learner.train_result import TrainResult
from asyncrl.learner.trainer import BaseTrainer
from asyncrl.metrics.verdict import Setup
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.csv import CsvRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.terminal import ProgressConsole, TerminalRecorder, render_summary
from asyncrl.report.live import LiveReport
from asyncrl.training.describe_env import describe_env_of_run
from asyncrl.training.filming import discard_films
from asyncrl.training.launchers import RunLauncher
from asyncrl.training.modes import check_mode
from asyncrl.training.presets import (
    REPLAYS,
    ReplayKind,
    agent_in,
    load_over,
    preset,
    preset_like,
    preset_lines,
    with_replay,
)
from asyncrl.training.ranks import sharing_failure
from asyncrl.training.recorded import ORDER_FILE
from asyncrl.training.rounds import Rounds
from asyncrl.training.run import build_trainer
from asyncrl.training.run_config import RunConfig


def print_run(agent: str, config: RunConfig, run_dir: Path) -> None:
    """Print what is trained, where results go, and whether the run has a limit."""
    show(f"training {agent} on {config.env}, results in {run_dir}")
    if config.stop_condition() is None:
        show("no limit is set, so it trains until Ctrl-C, which saves a checkpoint first")


_PRINTED_SETTINGS = ("asyncrl.replay", "asyncrl.supervision.in_child", "asyncrl.training.hosted")


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
    # In separate threads, as trackers are: one that hangs must not take the run's own file along.
    own = [
        BackgroundRecorder([one], close_timeout_s=_OWN_CLOSE_S)
        for one in config.parts.make_recorders()
    ]
    recorders += [*own, *_trackers(run_dir, output)]
    return BackgroundRecorder(recorders, close_timeout_s=_CLOSE_S)


_TRACKER_CLOSE_S = 3.0
"""Seconds in which a tracker writes its last records."""

_FILM_CLOSE_S = 15.0
"""The same for TensorBoard, which may be encoding a film."""

_OWN_CLOSE_S = 15.0
"""The same for a custom recorder."""

_CLOSE_S = 25.0
"""The same for all recorders, which close side by side: longer than any of them."""


def _trackers(run_dir: Path, output: Output) -> list[Recorder]:
    """Return the trackers chosen by flags, each in a separate thread.

    One that hangs or fails, as services do, thus loses its own numbers only. One that is slow, as
    TensorBoard when it encodes a film, delays no other.
    """
    found: list[Recorder] = []
    apart = partial(BackgroundRecorder, close_timeout_s=_TRACKER_CLOSE_S)
    name, videos = run_dir.name, run_dir / VIDEOS
    if output.tensorboard:
        from asyncrl.recorders.tensorboard import TensorBoardRecorder

        recorder = TensorBoardRecorder(run_dir / "tensorboard", videos=videos)
        found.append(apart([recorder], close_timeout_s=_FILM_CLOSE_S))
    if output.mlflow:
        from asyncrl.recorders.mlflow import MlflowRecorder

        mlflow = partial(MlflowRecorder, directory=run_dir / "mlflow", videos=videos)
        found.append(apart([mlflow(output.mlflow, run_name=output.mlflow_run)]))
    if output.wandb:
        from asyncrl.recorders.wandb import WandbRecorder

        files = run_dir / "wandb"
        found.append(apart([WandbRecorder(output.wandb, files, run_name=name, videos=videos)]))
    if output.trackio:
        from asyncrl.recorders.trackio import TrackioRecorder

        found.append(apart([TrackioRecorder(output.trackio, run_name=name, videos=videos)]))
    return found


JOIN_KEY = "join.key"
"""The file in a run's directory with which hosts join it."""

Scalar = bool | int | float | str

_TUNING_S = 60.0
_HELP = {"-h", "--help", "--help-all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Start, output and display of a run."""

    run_dir: Annotated[Path | None, COMMON] = None
    """Directory of the run. Default: a new one under `runs/`, named after agent, environment, seed
    and time; runs that begin in the same second get `-2`, `-3` and so on."""

    config: Annotated[Path | None, COMMON] = None
    """YAML file with settings, for instance another run's `config.yaml`. Settings that it lacks
    come from the preset. Flags override the file."""

    listen: str | None = None
    """`tcp://ADDRESS` or `tcp://ADDRESS:PORT` of this machine: actors run on any machine that joins
    there by `asyncrl join RUN_DIR/join.key`. Sets `--launcher hosts` and `--transport.bind`. With
    it, `--actors 4..64` starts when there is room for 4 actors, and takes up to 64."""

    advertise: str | None = None
    """Name of this machine in the network of the hosts; sets `--transport.advertise`."""

    replay_kind: Annotated[ReplayKind | None, COMMON] = None
    """Kind of replay buffer, if not the preset's or the file's. Its settings are `--replay.*`."""

    learners: Count = 1
    """Number of learners on this machine, each with its part of the actors, of the batch and of the
    replay: for networks whose optimisation steps limit the run. All settings mean the whole run."""

    quiet: Annotated[bool, COMMON] = False
    """Print only the summary, and the address of a dashboard."""

    dashboard: Annotated[bool, COMMON] = False
    """Serve the report of the active run to browsers on this machine, and print its address. Costs
    at most 1 % of a core."""

    dashboard_port: Port = 0
    """Port of the dashboard. 0 takes a free one."""

    progress_s: NotNegative = 60.0
    """Seconds between two lines of progress if standard output is not a terminal. 0 prints each
    record. Evaluations have their own lines, at most one in 10 s."""

    tensorboard: Annotated[bool, COMMON] = False
    """Also write TensorBoard files into the run directory."""

    record_order: bool = False
    """Keep the experience, and the order in which the learner used it, in the file `order` of the
    run directory: `asyncrl replay` then computes the same parameters again, bit for bit. For
    asynchronous runs; takes the disk space of all experience. `resume` continues to record."""

    csv: bool = False
    """Also write `metrics.csv` into the run directory."""

    mlflow: str | None = None
    """Also log to this MLflow experiment. The variable MLFLOW_TRACKING_URI names the server. A
    resumed run continues the same record."""

    mlflow_run: str | None = None
    """Name of the MLflow run. Default: the name of the run directory."""

    wandb: str | None = None
    """Also log to this project of Weights & Biases. The variable WANDB_MODE=offline keeps the
    numbers in the run directory, for `wandb sync`. A resumed run continues the same record."""

    trackio: str | None = None
    """Also log to this project of Trackio, in a file on this machine that `trackio show` draws. A
    resumed run continues the same record."""

    profile_opt_steps: CountOrOff = 0
    """Profile this number of the learner's optimisation steps into `profile.json` in the run
    directory, for https://ui.perfetto.dev. 0 disables."""

    def __post_init__(self) -> None:
        check_declared(self, flags=True)
        if self.mlflow_run and not self.mlflow:
            raise ConfigError("--mlflow-run names a run of an experiment; add --mlflow EXPERIMENT")
        if self.dashboard_port and not self.dashboard:
            raise ConfigError("--dashboard-port has no effect without --dashboard; add it")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments:
    """The parsed command line."""

    agent: str
    """The agent as given on the command line: a preset or an import path."""

    output: Output
    config: RunConfig
    command: str = ""
    """The command line itself, as it is stored with the run."""

    auto: SearchSpace | None = None
    """What `--actors auto` chooses before training; None without it."""

    resume: Resume = False
    """Whether to resume from the run directory."""


def parse(argv: list[str]) -> TrainArguments:
    """Parse the command line: the preset, or `--config`, gives the defaults of all flags."""
    words = for_hosts(dashed(argv))
    reached = ("--listen", "--transport.bind", "--config")
    if value_of("--advertise", words) and not any(value_of(flag, words) for flag in reached):
        raise ConfigError(
            "--advertise names this machine to hosts that join; add --listen tcp://ADDRESS"
        )
    if words and words[0] in _HELP:
        return parse_flags("asyncrl train AGENT", "dqn", preset("dqn"), words, _presets())
    if words and not words[0].startswith("-"):
        agent, *flags = words
        return parse_flags(f"asyncrl train {agent}", agent, _starting_point(agent, flags), flags)
    path = _config_file(words)
    named = agent_in(path) if path else None
    if named is None and not path and value_of("--env", words):
        agent = _suggested(words)
        return parse_flags(f"asyncrl train {agent}", agent, _starting_point(agent, words), words)
    if named is None:
        raise ConfigError(
            (f"{path} has no agent.type; " if path else "")
            + "name an agent: asyncrl train PRESET|MODULE:CONFIG [OPTIONS], where PRESET is one "
            f"of {', '.join(preset_lines())}; or only an environment: asyncrl train --env ID"
        )
    start = _starting_point(named, words)
    return parse_flags("asyncrl train", preset_like(start), start, words)


_OF_ENV = ("--env", "--env-kwargs", "--env-wrappers", "--vectorization")


def _suggested(words: list[str]) -> str:
    """Return the preset that suits the environment of a command line, and say which and why."""
    from asyncrl.training.suggested import suggested_for

    if own := [word for word in words if word.startswith(("--agent.", "--replay."))]:
        raise ConfigError(f"{own[0]} is a setting of one agent; name it: asyncrl train PRESET ...")
    kept, is_kept = [], False
    for word in words:
        if word.startswith("--"):
            is_kept = word.partition("=")[0] in _OF_ENV
        kept += [word] * is_kept
    config = parse_flags("asyncrl train", "dqn", preset("dqn"), kept).config
    timeout_s = config.supervision.start_timeout_s
    found = suggested_for(config.env_config(), timeout_s=timeout_s)
    show(f"{found.preset} suits {config.env}: {found.why}. The same by name:")
    show(f"  asyncrl train {found.preset} {shlex.join(words)}")
    return found.preset


def parse_flags(
    prog: str, agent: str, start: RunConfig, flags: list[str], more: str = ""
) -> TrainArguments:
    """Parse flags whose defaults are the values of a config; `more` is appended to the help."""
    concrete, output, shown = _concrete(_replaced(start, flags)), Output(), "All settings."
    if "--help-all" not in flags and _HELP & set(flags):
        concrete, output = without_rare(concrete), without_rare(output)
        shown = "The most common settings; --help-all shows the rest."
    form = dataclasses.make_dataclass(
        "Form",
        [
            (name, Annotated[type(value), tyro.conf.arg(name="")], field(default=value))
            for name, value in (("output", output), ("run", concrete))
        ],
    )
    given: Any = parsed(
        form,
        prog=prog,
        description=f"Train an agent. {shown}{more}",
        args=["--help" if flag in _HELP else flag for flag in flags],
        settings=(output, concrete),
        lists="--help-all",
        config=(tyro.conf.CascadeSubcommandArgs,),
        registry=REGISTRY,
    )
    values = {f.name: getattr(given.run, f.name) for f in dataclasses.fields(RunConfig)}
    auto = _search_space(flags) if values["actors"] == "auto" else None
    if auto:
        values["actors"] = RunConfig().actors  # the search starts from it
    if values["data"] is not None:
        values["data"] = values["data"].absolute()  # a resumed run may start elsewhere
    config = RunConfig(**values)
    config.stop_condition()  # raises here if it can never hold
    config.parts.check()
    _check_mode(config, flags, auto=auto is not None)
    command = f"{prog} {shlex.join(flags)}".rstrip()
    return TrainArguments(
        agent=agent, output=given.output, config=config, command=command, auto=auto
    )


def _check_mode(config: RunConfig, flags: list[str], *, auto: bool) -> None:
    """Reject flags without effect in this mode, and missing or unused data."""
    if auto and config.mode != "async":
        raise ConfigError(f"--actors auto has no effect with --mode {config.mode}")
    if auto and config.elsewhere:
        raise ConfigError(
            "--actors auto measures this machine, but hosts start the actors; give their number, "
            "or a range: --actors 4..64"
        )
    given = (_setting_of(word) for word in flags if word.startswith("--"))
    by_value = {"data", "inference"}  # whose defaults have an effect in no mode
    check_mode(config, [name for name in given if name not in by_value], flag_of)
    if config.mode == "sync":
        Rounds.of(config)  # raises here if they are not defined
    elif config.mode == "offline":
        config.data_or_raise()


def _setting_of(word: str) -> str:
    """Return the setting that a flag is for."""
    name = word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    return {"listen": "transport.bind", "advertise": "transport.advertise"}.get(name, name)


def _presets() -> str:
    lines = (f"{name}: {line}" for name, line in preset_lines().items())
    own = "Or MODULE:CONFIG, the import path of a custom agent's config."
    return "\n\n".join(["", "AGENT is one of these presets:", *lines, own])


def run(arguments: TrainArguments, launcher: RunLauncher | None = None) -> int:
    """Train, and return the exit code. `launcher` starts the processes of an asynchronous run."""
    to_plain(arguments.config)  # settings that cannot be saved are rejected before anything starts
    group = group_of(arguments)
    with sharing_failure(group):
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


@contextmanager
def _dashboard(output: Output, run_dir: Path) -> Iterator[LiveReport | None]:
    """Take the port of the dashboard before anything starts; show the end of the run at the end."""
    if not output.dashboard:
        yield None
        return
    with closing(LiveReport(run_dir, output.dashboard_port)) as dashboard:
        yield dashboard


def _order_line(run_dir: Path, shown: Path) -> str:
    path = run_dir / ORDER_FILE
    parts = [part_of(path, number) for number in range(1, next_part(path))]
    if not parts:
        return f"\n  order      {shown / ORDER_FILE} was removed; asyncrl replay needs it back"
    size = sum(part.stat().st_size for part in parts)
    return f"\n  order      {size / 1e6:.3g} MB, for asyncrl replay {shown}"


def _trained(
    trainer: BaseTrainer,
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


def _starting_point(agent: str, flags: list[str]) -> RunConfig:
    """Return the config whose values are the defaults of all flags."""
    path = _config_file(flags)
    start = load_over(agent, path, _with_auto(RunConfig)) if path else preset(agent)
    kind = value_of("--replay-kind", flags)
    return with_replay(start, kind) if kind and kind in REPLAYS else start


def _config_file(flags: list[str]) -> Path | None:
    given = value_of("--config", flags)
    path = Path(given) if given else None
    if path:
        check_config_file(path)
    return path


def _with_auto(cls: type[RunConfig]) -> type[RunConfig]:
    """Return a class whose `actors` may also be `auto`; `RunConfig` checks the values."""
    return dataclasses.make_dataclass(
        "RunConfig",
        [("actors", Annotated[int | Literal["auto"], COMMON], field(default=RunConfig().actors))],
        bases=(cls,),
        namespace={"__post_init__": lambda _: None, "__module__": __name__},
        frozen=True,
        kw_only=True,
        slots=True,
    )


def _search_space(flags: list[str]) -> SearchSpace:
    """Leave to the search what no flag sets."""
    return SearchSpace(
        envs=value_of("--envs-per-actor", flags) is None,
        length=value_of("--segment.length", flags) is None,
    )


def _tuned(arguments: TrainArguments) -> TrainArguments:
    """Choose the settings that were left to the search, by short runs."""
    if not arguments.auto:
        return arguments
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
) -> BaseTrainer:
    output, config = arguments.output, arguments.config
    if config.mode != "async":
        if launcher:
            launcher.close()
            launcher = None
        # The run builds environments in this process; first a child finds those that crash or hang.
        if config.mode == "sync" or config.evaluate.where != "off":
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
        record_order=_order_file(arguments, run_dir),
        join_key=_key_file(config, run_dir),
        video_dir=run_dir / VIDEOS,
    )


def _order_file(arguments: TrainArguments, run_dir: Path) -> Path | None:
    """Return where the order is recorded; a resumed run continues to record it."""
    path = run_dir / ORDER_FILE
    return path if arguments.output.record_order or (arguments.resume and path.exists()) else None


def _key_file(config: RunConfig, run_dir: Path) -> Path | None:
    """Return where the key is written that hosts join with."""
    joined = config.mode == "async" and config.launcher == "hosts"
    return run_dir / JOIN_KEY if joined else None


def _callbacks(output: Output, run_dir: Path) -> list[Callback]:
    if not output.profile_opt_steps:
        return []
    from asyncrl.agents.parts.profiler import Profiler

    return [Profiler(run_dir / "profile.json", output.profile_opt_steps)]


def _replaced(start: RunConfig, flags: list[str]) -> RunConfig:
    """Leave out arguments of environments that flags replace.

    With some of them as defaults, the parser would know a flag for each, but none for all.
    """
    flag_of = {"env_kwargs": "--env-kwargs", "eval_env_kwargs": "--eval-env-kwargs"}
    words = {word.partition("=")[0] for word in flags}  # none may follow the flag
    given: dict[str, Any] = {name: {} for name, flag in flag_of.items() if flag in words}
    return replace(start, **given) if given else start


def _concrete(config: RunConfig) -> RunConfig:
    """Return the same config in a class that declares its members' concrete classes.

    A field declared as a protocol shows no flags, but those of its object are needed.
    """
    members: list[tuple[str, Any]] = [(n, type(getattr(config, n))) for n in ("agent", "replay")]
    kwargs = {
        "env_kwargs": Annotated[Mapping[str, Scalar], COMMON],
        "eval_env_kwargs": Mapping[str, Scalar],
    }
    members += [
        (name, declared)
        for name, declared in kwargs.items()
        if all(isinstance(value, Scalar) for value in getattr(config, name).values())
    ]
    concrete = dataclasses.make_dataclass(
        "RunConfig",
        [
            (name, declared, field(default_factory=partial(getattr, config, name)))
            for name, declared in members
        ],
        bases=(_with_auto(RunConfig),),
        namespace={"__module__": __name__},
        frozen=True,
        kw_only=True,
        slots=True,
    )
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return concrete(**values)  # type: ignore[no-any-return]


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
