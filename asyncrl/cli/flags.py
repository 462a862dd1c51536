"""The settings of a run on a command line: those of a preset or a file, overridden by flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, Literal, TypeAlias, TypeVar

from asyncrl.checkpoint.resume import Resume
from asyncrl.cli.output import complain, show
from asyncrl.cli.parser import (
    HELP,
    Data,
    Flag,
    flag_of,
    flags_in,
    help_of,
    key_of,
    laid,
    matched,
    read,
)
from asyncrl.core.declared import COMMON, Count, CountOrOff, Kind, NotNegative, Port, settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.run.modes import IN_FILES, NEEDS, check_mode, is_within, missing
from asyncrl.run.presets import (
    ReplayKind,
    agent_in,
    over_preset,
    preset,
    preset_like,
    preset_lines,
    with_replay,
)
from asyncrl.run.run_config import Rounds, RunConfig
from asyncrl.run.yaml_file import ALSO_CALLED

if TYPE_CHECKING:
    from asyncrl.tools.bench.tuner import SearchSpace

OTHER_NAMES: Mapping[str, str] = {
    **ALSO_CALLED,
    "buffer_size": "capacity",
    "discount": "gamma",
    "env_id": "env",
    "eval_freq": "evaluate.interval_opt_steps",
    "exp_name": "run_dir",
    "experiment_name": "mlflow",
    "f": "config",
    "gradient_steps": "samples_per_insert",
    "learning_starts": "min_size",
    "lr": "learning_rate",
    "n_envs": "envs_per_actor",
    "net_arch": "hidden",
    "num_envs": "envs_per_actor",
    "num_workers": "actors",
    "policy_kwargs": "hidden",
    "save": "save.interval_opt_steps",
    "save_freq": "save.interval_opt_steps",
    "steps_per_eval": "evaluate.interval_opt_steps",
    "total_timesteps": "max_env_steps",
    "train_freq": "samples_per_insert",
    "train_frequency": "samples_per_insert",
}
"""Names in Python and in other libraries -> ends of the paths of settings here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the settings of a run begin with."""

    config: Annotated[Path | None, COMMON] = None
    """YAML file with settings, for instance another run's `config.yaml`. Settings that it lacks
    come from the preset. Flags override the file."""

    replay: Annotated[ReplayKind | None, COMMON] = None
    """Kind of replay buffer, if not the preset's or the file's. Its settings are `--replay.*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Start):
    """Train an agent."""

    run_dir: Annotated[Path | None, COMMON] = None
    """Directory of the run. Default: a new one under `runs/`, named after agent, environment, seed
    and time; runs that begin in the same second get `-2`, `-3` and so on."""

    listen: str | None = None
    """`tcp://ADDRESS` or `tcp://ADDRESS:PORT` of this machine: actors run on any machine that joins
    there by `asyncrl join RUN_DIR/join.key`. Sets `--launcher hosts`, unless it is given. With it,
    `--actors 4..64` starts when there is room for 4 actors, and takes up to 64."""

    advertise: str | None = None
    """Host name or address under which hosts reach this machine, if it is not that of `--listen`,
    as behind address translation: `NAME` or `NAME:PORT`."""

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
    """Also log to this MLflow experiment, under the name of the run directory. The variable
    MLFLOW_TRACKING_URI names the server. A resumed run continues the same record."""

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
        if self.dashboard_port and not self.dashboard:
            raise ConfigError("--dashboard-port has no effect without --dashboard; add it")


S = TypeVar("S", bound=Start)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments(Generic[S]):
    """The parsed command line of a run."""

    agent: str
    """The agent as given on the command line: a preset or an import path."""

    output: S
    """What is no setting of the run itself."""

    config: RunConfig
    command: str = ""
    """The command line itself, as it is stored with the run."""

    auto: SearchSpace | None = None
    """What `--actors auto` chooses before training; None without it."""

    resume: Resume = False
    """Whether to resume from the run directory."""

    given: Mapping[str, str] = field(default_factory=dict)
    """The settings that flags have set, by path, with the flags."""


TrainArguments: TypeAlias = RunArguments[Output]


@dataclass(frozen=True, slots=True)
class _Range:
    """A number of actors that follows the hosts that join and leave."""

    form: ClassVar[str] = "MIN..MAX"

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> _Range:
        form = re.fullmatch(r"([0-9]+)\.\.([0-9]+)", text)
        if form is None:
            raise ConfigError(f"expected a number, auto, or a range as 4..64, got {text!r}")
        return cls(int(form[1]), int(form[2]))


def parse_train(argv: Sequence[str]) -> TrainArguments:
    """Parse the command line of `asyncrl train`."""
    return parse_with_agent("asyncrl train", argv, Output)


def parse_with_agent(prog: str, argv: Sequence[str], form: type[S]) -> RunArguments[S]:
    """Parse an agent and the flags of a run: a preset, or `--config`, gives their defaults."""
    if argv and argv[0] in HELP:
        start = to_plain(preset("dqn"))
        return parse_run(f"{prog} AGENT", argv, start, form, about=_presets())
    agent, words = (argv[0], argv[1:]) if argv and argv[0][0:1] != "-" else ("", argv)
    own = own_values(words, form)
    path = Path(own["config"]) if own.get("config") else None
    if path:
        check_config_file(path)
    named = agent or (agent_in(path) if path else "")
    if not named and not path:
        named = agent = _suggested(prog, words)
    if not named:
        raise ConfigError(
            (f"{path} has no agent.type; " if path else "")
            + f"name an agent: {prog} PRESET|MODULE:CONFIG [OPTIONS], where PRESET is one of "
            f"{', '.join(preset_lines())}; or only an environment: {prog} --env ID"
        )
    start = over_preset(named, path) if path else to_plain(preset(named))
    if kind := own.get("replay"):
        start["replay"] = with_replay(start["replay"], kind)
    return parse_run(f"{prog} {agent}".rstrip(), words, start, form, agent=agent)


def parse_run(
    prog: str,
    words: Sequence[str],
    start: Mapping[str, Data],
    form: type[S],
    *,
    agent: str = "",
    about: str = "",
) -> RunArguments[S]:
    """Parse the flags of a run, whose defaults are in `start` as a file would hold them."""
    flags, plain = flags_over(start, words, form)
    if HELP & set(words):
        is_all = "--help-all" in words
        shown = [flag for flag in flags_with_effect(flags, plain) if is_all or flag.setting.common]
        which = "" if is_all else " The most common settings; --help-all shows the rest."
        show(help_of(shown, prog, f"{(form.__doc__ or '').strip()}{which}{about}"))
        raise SystemExit(0)
    _check_flags(words)
    values = read(words, flags, prog, "--help-all", OTHER_NAMES)
    own = {name: values.pop(name) for name in settings_of(form) if name in values}
    output = from_plain(form, own)
    given = {path: flag_of(path) for path in values}
    for flag, path, value in _for_hosts(own, values):
        given[path], values[path] = flag, value
    plain = laid(plain, values)
    auto = None
    if plain["actors"] == "auto":
        from asyncrl.tools.bench.tuner import SearchSpace

        auto = SearchSpace(envs="envs_per_actor" not in given, length="segment.length" not in given)
        plain["actors"] = RunConfig().actors  # the search starts from it
    order = {"observers": "--record-order"} if own.get("record_order") else {}
    with naming_flags(given):
        config = _checked(plain, output.config, {**given, **order}, is_auto=auto is not None)
    return RunArguments(
        agent=agent or preset_like(config),
        output=output,
        config=config,
        command=f"{prog} {shlex.join(words)}".rstrip(),
        auto=auto,
        given=given,
    )


def _check_flags(words: Sequence[str]) -> None:
    """Refuse settings that have no flag."""
    for path in (key_of(word) for word in words if word.startswith("--")):
        if is_within(path, IN_FILES):
            raise ConfigError(
                f"{flag_of(path)} is no flag: set {path} in the file of --config, or, to resume, "
                "in the run's config.yaml"
            )


def own_values(words: Sequence[str], form: type[Start] = Output) -> dict[str, Data]:
    """Return what a command line says that is no setting of the run itself, by name."""
    found, _ = matched(words, flags_in(form, {}))
    return {flag.path: flag.read(values) for flag, values in found}


def check_config_file(path: Path) -> None:
    """Raise `ConfigError` unless the path of `--config` is a file."""
    if not path.exists():
        raise ConfigError(f"--config: {path} does not exist")
    if path.is_dir():
        raise ConfigError(f"--config: {path} is a directory; name a file in it")


@contextmanager
def naming_flags(given: Mapping[str, str]) -> Iterator[None]:
    """Add to errors about settings which of them flags have set."""
    try:
        yield
    except ConfigError as error:
        words = set(re.findall(r"(?<![\w.-])[a-z]\w*(?:\.\w+)+", str(error)))
        if flags := dict.fromkeys(flag for path, flag in given.items() if path in words):
            error.add_note(f"asyncrl: set by {', '.join(flags)}")
        raise


def flags_with_effect(flags: Sequence[Flag], plain: Mapping[str, Data]) -> list[Flag]:
    """Return the flags that have an effect in a run with these settings."""
    shown = (flag for flag in flags if not is_within(flag.path, IN_FILES))
    value_of = partial(_value_in, plain)
    return [flag for flag in shown if missing(flag.path, value_of) is None]


def _value_in(plain: Mapping[str, Data], path: str) -> Data:
    return reduce(getitem, path.split("."), plain)


def flags_over(
    start: Mapping[str, Data], words: Sequence[str] = (), form: type[Start] = Output
) -> tuple[list[Flag], Mapping[str, Data]]:
    """Return all flags of a run, and its defaults with what the words choose.

    They choose classes of groups, and the settings that others need.
    """
    plain, choosing = start, {need.setting for need in NEEDS}
    while True:
        flags = [*flags_in(form, {}), *map(_with_range, flags_in(RunConfig, plain))]
        found = [
            one for one in matched(words, flags)[0] if one[0].classes or one[0].path in choosing
        ]
        chosen = laid(plain, {flag.path: flag.read(said) for flag, said in found})
        if chosen == plain:
            return flags, plain
        plain = chosen


def _with_range(flag: Flag) -> Flag:
    """Let the number of actors be a range, or what is best."""
    if flag.path != "actors":
        return flag
    more = (Kind(Literal["auto"], None), Kind(_Range, None))
    return replace(flag, setting=replace(flag.setting, kinds=(*flag.setting.kinds, *more)))


def _for_hosts(
    own: Mapping[str, Data], values: Mapping[str, Data]
) -> Iterator[tuple[str, str, Data]]:
    """Yield what `--listen`, `--advertise` and a range of actors stand for: flag, path, value."""
    for name, path in (("listen", "transport.bind"), ("advertise", "transport.advertise")):
        if own.get(name) is not None:
            yield flag_of(name), path, own[name]
    if own.get("listen") is not None and "launcher" not in values:
        yield "--listen", "launcher", "hosts"
    actors = values.get("actors")
    if isinstance(actors, str) and actors != "auto":
        both = _Range.parse(actors)
        yield "--actors", "hosts.min_actors", both.least
        yield "--actors", "actors", both.most


def _checked(
    plain: Mapping[str, Data], path: Path | None, given: Mapping[str, str], *, is_auto: bool
) -> RunConfig:
    """Return the settings; refuse those that cannot work, or have no effect in their mode."""
    try:
        config = from_plain(RunConfig, plain)
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}" if path else str(error)) from error
    if config.data is not None:
        config = replace(config, data=config.data.absolute())  # a resumed run may start elsewhere
    config.stop_condition()  # raises here if it can never hold
    config.parts.check()
    if is_auto and config.mode != "async":
        raise ConfigError(f"--actors auto has no effect with --mode {config.mode}")
    if is_auto and config.elsewhere:
        raise ConfigError(
            "--actors auto measures this machine, but hosts start the actors; give their number, "
            "or a range: --actors 4..64"
        )
    check_mode(config, given, _shown(given))
    if config.mode == "sync":
        Rounds.of(config)  # raises here if they are not defined
    elif config.mode == "offline":
        config.data_or_raise()
    return config


def _shown(given: Mapping[str, str]) -> Callable[[str], str]:
    """Return what names a setting by its flag, if it has one."""
    return lambda path: path if path.startswith("parts.") else given.get(path, flag_of(path))


_OF_ENV = ("env", "env_kwargs", "env_wrappers", "vectorization")


def _suggested(prog: str, words: Sequence[str]) -> str:
    """Return the preset that suits the environment of a command line, and say which and why.

    Returns "" if no environment is named.
    """
    from asyncrl.run.preset_rules import suggested_for

    plain = to_plain(preset("dqn"))
    given, _ = matched(words, flags_in(RunConfig, plain))
    values = {flag.path: flag.read(said) for flag, said in given if flag.path in _OF_ENV}
    if "env" not in values:
        return ""
    if own := [word for word in words if word.startswith(("--agent.", "--replay."))]:
        raise ConfigError(f"{own[0]} is a setting of one agent; name it: {prog} PRESET ...")
    config = from_plain(RunConfig, laid(plain, values))
    found = suggested_for(config.env_config(), timeout_s=config.supervision.start_timeout_s)
    complain(f"{found.preset} suits {config.env}: {found.why}. The same by name:")
    complain(f"  {prog} {found.preset} {shlex.join(words)}")
    return found.preset


def _presets() -> str:
    lines = (f"{name}: {line}" for name, line in preset_lines().items())
    own = "Or MODULE:CONFIG, the import path of a custom agent's config."
    return "\n\n".join(["", "AGENT is one of these presets:", *lines, own])
